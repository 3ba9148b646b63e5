/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* GPM (GPU performance monitoring), which Hopper and newer have, for a GPU and for a GPU instance. Shapes: nvml.h, and pynvml
 * 13.615. Of the metrics only GRAPHICS_UTIL is counted; it is the load that simctl set, whatever time lies between two samples. */
#include "api.h"

#include <stdlib.h>

#define HOPPER 9
#define GRAPHICS_UTIL 1

typedef struct {
    unsigned int version, isSupportedDevice;
} gpm_support_t;

typedef struct {
    unsigned int metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct {
        const char *shortName, *longName, *unit;
    } metricInfo;
} gpm_metric_t;

typedef struct gpm_sample {
    int taken, util;
} *gpm_sample_t;

typedef struct {
    unsigned int version, numMetrics;
    gpm_sample_t sample1, sample2;
    gpm_metric_t metrics[];
} gpm_metrics_t;

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, gpm_support_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(out->version == 1, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (r == NVML_SUCCESS)
        out->isSupportedDevice = d.b->arch >= HOPPER;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(gpm_sample_t *out) {
    OPEN(READ, "%s", "");
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS && !(*out = calloc(1, sizeof **out)))
        r = NVML_ERROR_MEMORY;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(gpm_sample_t sample) {
    OPEN(READ, "%s", "");
    NEEDS(sample, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        free(sample);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t handle, gpm_sample_t sample) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(sample, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->arch >= HOPPER, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        *sample = (struct gpm_sample){1, d.g->util_gpu};
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t handle, unsigned int id, gpm_sample_t sample) {
    OPEN(READ, "%s, \"gi\": %u", name_of(handle), id);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(sample, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->arch >= HOPPER && d.b->mig && d.g->mig_current, NVML_ERROR_NOT_SUPPORTED);
    NEEDS(gi_by_id(d.g, (int)id), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *sample = (struct gpm_sample){1, d.g->util_gpu};
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(gpm_metrics_t *asked) {
    OPEN(READ, "%s", "");
    NEEDS(asked, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(asked->version == 1, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEEDS(asked->sample1 && asked->sample2 && asked->sample1->taken && asked->sample2->taken, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned int i = 0; r == NVML_SUCCESS && i < asked->numMetrics; i++) {
        gpm_metric_t *metric = &asked->metrics[i];
        bool known = metric->metricId == GRAPHICS_UTIL;
        metric->nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        metric->value = known ? asked->sample2->util : 0;
    }
    return call_end(&c, r);
}
