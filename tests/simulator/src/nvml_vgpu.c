/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* The vGPU host side: modes, types, heterogeneous mode, scheduler. Facts: hosts.md, sections 2.6 to 2.9. */
#include "api.h"

enum { MODE_HOST_VGPU = 3, POLICY_BEST_EFFORT = 1, POLICY_FIXED = 3, MIN_SLICE_NS = 1000000, MAX_SLICE_NS = 30000000 };

static bool is_host(const device_t *d) {
    return d->b->vgpu_supported && d->g->virtualization == MODE_HOST_VGPU;
}

static bool has_vgpus(const gpu_t *g) {
    for (int i = 0; i < MAX_VGPUS; i++)
        if (g->vgpus[i].used)
            return true;
    return false;
}

NUMBER(nvmlDeviceGetVirtualizationMode, WHOLE_GPU_READING, true, d.g->virtualization)
/* 1: SR-IOV, which every board with types here does. */
NUMBER(nvmlDeviceGetHostVgpuMode, WHOLE_GPU_READING, is_host(&d), d.b->arch >= 7)

EXPORT nvmlReturn_t nvmlDeviceSetVirtualizationMode(nvmlDevice_t handle, unsigned int mode) {
    OPEN(WRITE, "%s, \"mode\": %u", name_of(handle), mode);
    DEVICE_FOR_ROOT(handle);
    NEEDS(mode <= 4, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->vgpu_supported && (mode == 0 || mode == MODE_HOST_VGPU), NVML_ERROR_NOT_SUPPORTED);
    NEEDS(!has_vgpus(d.g), NVML_ERROR_IN_USE);
    if (r == NVML_SUCCESS)
        set_int(&c, &d.g->virtualization, (int)mode);
    return call_end(&c, r);
}

/* ---- types ---- */

static const vgpu_type_t *type_by_id(unsigned int id, const board_t **board) {
    for (int i = 0; i < sim->nboards; i++)
        for (int k = 0; k < sim->boards[i].nvgpu_types; k++)
            if (sim->boards[i].vgpu_types[k].id == id) {
                if (board)
                    *board = &sim->boards[i];
                return &sim->boards[i].vgpu_types[k];
            }
    return NULL;
}

static int active_of(const gpu_t *g, unsigned int type) {
    int n = 0;
    for (int i = 0; i < MAX_VGPUS; i++)
        n += g->vgpus[i].used && g->vgpus[i].type == type;
    return n;
}

static int instances_of(const gpu_t *g, int profile) {
    int n = 0;
    for (int i = 0; i < MAX_GIS; i++)
        n += g->gis[i].used && g->gis[i].profile == profile;
    return n;
}

/* With MIG on, only types that lie in a GPU instance that exists; with MIG off, only time-sliced ones, and in
 * equal-size mode only of the size that is in use already. */
static bool creatable(const device_t *d, const vgpu_type_t *t) {
    if (d->g->mig_current)
        return t->gi_profile >= 0 &&
               active_of(d->g, t->id) < instances_of(d->g, t->gi_profile) * (t->max_per_gi ? t->max_per_gi : 1);
    if (t->gi_profile >= 0 || active_of(d->g, t->id) >= t->max)
        return false;
    long long held = 0;
    for (int i = 0; i < MAX_VGPUS; i++) {
        const vgpu_type_t *other = d->g->vgpus[i].used ? type_by_id(d->g->vgpus[i].type, NULL) : NULL;
        if (!other)
            continue;
        if (!d->g->heterogeneous && other->fb_mib != t->fb_mib)
            return false;
        held += other->fb_mib;
    }
    return held + t->fb_mib <= d->b->memory_mib + d->b->reserved_mib;
}

static nvmlReturn_t list_types(const char *name, nvmlDevice_t handle, bool only_creatable, unsigned int *count,
                               unsigned int *out) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU);
    NEEDS(count, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(is_host(&d), NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        unsigned int room = out ? *count : 0, n = 0;
        for (int i = 0; i < d.b->nvgpu_types; i++) {
            if (only_creatable && !creatable(&d, &d.b->vgpu_types[i]))
                continue;
            if (n < room)
                out[n] = d.b->vgpu_types[i].id;
            n++;
        }
        *count = n;
        r = n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedVgpus(nvmlDevice_t handle, unsigned int *count, unsigned int *out) {
    return list_types(__func__, handle, false, count, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetCreatableVgpus(nvmlDevice_t handle, unsigned int *count, unsigned int *out) {
    return list_types(__func__, handle, true, count, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetActiveVgpus(nvmlDevice_t handle, unsigned int *count, unsigned int *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU);
    NEEDS(count, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(is_host(&d), NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        unsigned int room = out ? *count : 0, n = 0;
        for (int i = 0; i < MAX_VGPUS; i++)
            if (d.g->vgpus[i].used) {
                if (n < room)
                    out[n] = d.g->vgpus[i].instance;
                n++;
            }
        *count = n;
        r = n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    return call_end(&c, r);
}

#define TYPE(id) \
    const board_t *b = NULL; \
    const vgpu_type_t *t = r == NVML_SUCCESS ? type_by_id(id, &b) : NULL; \
    NEEDS(t, NVML_ERROR_INVALID_ARGUMENT)

static nvmlReturn_t type_text(const char *name, unsigned int id, char *out, unsigned int *size, bool vclass) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "\"type\": %u", id);
    TYPE(id);
    NEEDS(size, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        char text[80] = "NVIDIA ";
        if (vclass)
            copy_text(text, sizeof text, t->vclass);
        else
            copy_text(text + 7, sizeof text - 7, t->name);
        r = put_text(out, *size, text);
        *size = (unsigned int)strlen(text) + 1;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetName(unsigned int id, char *out, unsigned int *size) {
    return type_text(__func__, id, out, size, false);
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetClass(unsigned int id, char *out, unsigned int *size) {
    return type_text(__func__, id, out, size, true);
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetFramebufferSize(unsigned int id, unsigned long long *out) {
    OPEN(READ, "\"type\": %u", id);
    TYPE(id);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = (unsigned long long)t->fb_mib * 1024 * 1024;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetDeviceID(unsigned int id, unsigned long long *device, unsigned long long *subsystem) {
    OPEN(READ, "\"type\": %u", id);
    TYPE(id);
    NEEDS(device && subsystem, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        *device = b->pci_device_id;
        *subsystem = b->pci_subsystem_id;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetMaxInstances(nvmlDevice_t handle, unsigned int id, unsigned int *out) {
    OPEN(READ, "%s, \"type\": %u", name_of(handle), id);
    DEVICE(handle, WHOLE_GPU);
    TYPE(id);
    NEEDS(out && b == d.b, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        /* A mode in which a kind of type cannot exist reports 0 of them. */
        bool possible = (t->gi_profile >= 0) == (d.g->mig_current != 0);
        *out = possible ? (unsigned int)t->max : 0;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetMaxInstancesPerGpuInstance(nvmlVgpuTypeMaxInstance_t *out) {
    OPEN(READ, "\"type\": %u", out ? out->vgpuTypeId : 0);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(out->version == NVML_VERSION_WORD(*out, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    TYPE(out->vgpuTypeId);
    NEEDS(t->gi_profile >= 0, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        out->maxInstancePerGI = (unsigned int)t->max_per_gi;
    return call_end(&c, r);
}

/* Time-sliced types have no profile; NVML says so with an id that none has. */
EXPORT nvmlReturn_t nvmlVgpuTypeGetGpuInstanceProfileId(unsigned int id, unsigned int *out) {
    OPEN(READ, "\"type\": %u", id);
    TYPE(id);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = t->gi_profile >= 0 ? (unsigned int)b->profiles[t->gi_profile].id : NVML_NO_ID;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetCreatableVgpus(nvmlGpuInstance_t handle, nvmlVgpuTypeIdInfo_t *info) {
    OPEN(READ, "%s", name_of(handle));
    device_t d = {0};
    NEEDS(info, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(info->version == NVML_VERSION_WORD(*info, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    NEEDS(is_host(&d), NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        unsigned int room = info->vgpuTypeIds ? info->vgpuCount : 0, n = 0;
        for (int i = 0; i < d.b->nvgpu_types; i++) {
            const vgpu_type_t *t = &d.b->vgpu_types[i];
            if (t->gi_profile != d.gi->profile || !creatable(&d, t))
                continue;
            if (n < room)
                info->vgpuTypeIds[n] = t->id;
            n++;
        }
        info->vgpuCount = n;
        r = n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    return call_end(&c, r);
}

/* ---- mixed frame-buffer sizes ---- */

static nvmlReturn_t heterogeneous_possible(const device_t *d, const nvmlVgpuHeterogeneousMode_t *x) {
    if (!x)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (x->version != NVML_VERSION_WORD(*x, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return is_host(d) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetVgpuHeterogeneousMode(nvmlDevice_t handle, nvmlVgpuHeterogeneousMode_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU);
    if (r == NVML_SUCCESS)
        r = heterogeneous_possible(&d, out);
    NEEDS(!d.g->mig_current, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        out->mode = (unsigned int)d.g->heterogeneous;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceSetVgpuHeterogeneousMode(nvmlDevice_t handle, const nvmlVgpuHeterogeneousMode_t *in) {
    OPEN(WRITE, "%s, \"mode\": %u", name_of(handle), in ? in->mode : 0);
    DEVICE_FOR_ROOT(handle);
    if (r == NVML_SUCCESS)
        r = heterogeneous_possible(&d, in);
    NEEDS(in->mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(!d.g->mig_current, NVML_ERROR_NOT_SUPPORTED);
    NEEDS(!has_vgpus(d.g), NVML_ERROR_IN_USE);
    if (r == NVML_SUCCESS)
        set_int(&c, &d.g->heterogeneous, (int)in->mode);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetVgpuHeterogeneousMode(nvmlGpuInstance_t handle, nvmlVgpuHeterogeneousMode_t *out) {
    OPEN(READ, "%s", name_of(handle));
    device_t d = {0};
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    if (r == NVML_SUCCESS)
        r = heterogeneous_possible(&d, out);
    if (r == NVML_SUCCESS)
        out->mode = (unsigned int)d.gi->heterogeneous;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceSetVgpuHeterogeneousMode(nvmlGpuInstance_t handle,
                                                            const nvmlVgpuHeterogeneousMode_t *in) {
    OPEN(WRITE, "%s, \"mode\": %u", name_of(handle), in ? in->mode : 0);
    device_t d = {0};
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    if (r == NVML_SUCCESS)
        r = may_write(&c);
    if (r == NVML_SUCCESS)
        r = heterogeneous_possible(&d, in);
    NEEDS(in->mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(!has_vgpus(d.g), NVML_ERROR_IN_USE);
    if (r == NVML_SUCCESS)
        set_int(&c, &d.gi->heterogeneous, (int)in->mode);
    return call_end(&c, r);
}

/* ---- scheduler: of a GPU, and since 580 of a GPU instance; refused while a vGPU exists ---- */

typedef struct {
    int *policy, *arr, *avg, *time;
} sched_t;

static sched_t sched_of(device_t *d) {
    if (d->gi)
        return (sched_t){&d->gi->sched_policy, &d->gi->sched_arr, &d->gi->sched_avg, &d->gi->sched_time};
    return (sched_t){&d->g->sched_policy, &d->g->sched_arr, &d->g->sched_avg, &d->g->sched_time};
}

static nvmlReturn_t sched_set(call_t *c, device_t *d, unsigned int policy, unsigned int arr, unsigned int avg,
                              unsigned int time) {
    if (policy < POLICY_BEST_EFFORT || policy > POLICY_FIXED || arr > 2)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!is_host(d) || (!d->gi && d->g->mig_current))
        return NVML_ERROR_NOT_SUPPORTED;
    if (has_vgpus(d->g))
        return NVML_ERROR_IN_USE;
    sched_t s = sched_of(d);
    c->changed = *s.policy != (int)policy || *s.arr != (int)arr || *s.avg != (int)avg || *s.time != (int)time;
    *s.policy = (int)policy;
    *s.arr = (int)arr;
    *s.avg = (int)avg;
    *s.time = (int)time;
    return NVML_SUCCESS;
}

static nvmlReturn_t sched_device(call_t *c, nvmlDevice_t handle, bool write, device_t *d) {
    nvmlReturn_t r = find_device(c, handle, WHOLE_GPU, d);
    if (r == NVML_SUCCESS && write)
        r = may_write(c);
    if (r == NVML_SUCCESS && (!is_host(d) || d->g->mig_current))
        r = NVML_ERROR_NOT_SUPPORTED;
    return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetVgpuSchedulerState(nvmlDevice_t handle, nvmlVgpuSchedulerState_plain_t *out) {
    OPEN(READ, "%s", name_of(handle));
    device_t d = {0};
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = sched_device(&c, handle, false, &d);
    if (r == NVML_SUCCESS) {
        sched_t s = sched_of(&d);
        bool arr = *s.arr == 2;
        *out = (nvmlVgpuSchedulerState_plain_t){(unsigned int)*s.policy, (unsigned int)*s.arr,
                                                {(unsigned int)(arr ? *s.avg : *s.time),
                                                 (unsigned int)(arr ? *s.time : 0)}};
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceSetVgpuSchedulerState(nvmlDevice_t handle, const nvmlVgpuSchedulerState_plain_t *in) {
    OPEN(WRITE, "%s, \"policy\": %u", name_of(handle), in ? in->schedulerPolicy : 0);
    device_t d = {0};
    NEEDS(in, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = sched_device(&c, handle, true, &d);
    if (r == NVML_SUCCESS)
        r = sched_set(&c, &d, in->schedulerPolicy, in->arrMode, in->arrMode == 2 ? in->params[0] : 0,
                      in->arrMode == 2 ? in->params[1] : in->params[0]);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetVgpuSchedulerState_v2(nvmlDevice_t handle, nvmlVgpuSchedulerState_v2_t *out) {
    OPEN(READ, "%s", name_of(handle));
    device_t d = {0};
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = sched_device(&c, handle, false, &d);
    if (r == NVML_SUCCESS) {
        sched_t s = sched_of(&d);
        out->schedulerPolicy = (unsigned int)*s.policy;
        out->avgFactor = (unsigned int)*s.avg;
        out->time = (unsigned int)*s.time;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceSetVgpuSchedulerState_v2(nvmlDevice_t handle, const nvmlVgpuSchedulerState_v2_t *in) {
    OPEN(WRITE, "%s, \"policy\": %u", name_of(handle), in ? in->schedulerPolicy : 0);
    device_t d = {0};
    NEEDS(in, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = sched_device(&c, handle, true, &d);
    if (r == NVML_SUCCESS)
        r = sched_set(&c, &d, in->schedulerPolicy, in->avgFactor ? 2 : 0, in->avgFactor, in->time);
    return call_end(&c, r);
}

static nvmlReturn_t sched_instance(call_t *c, nvmlGpuInstance_t handle, bool write, device_t *d) {
    nvmlReturn_t r = find_gi(c, handle, d);
    if (r == NVML_SUCCESS && write)
        r = may_write(c);
    return r == NVML_SUCCESS && !is_host(d) ? NVML_ERROR_NOT_SUPPORTED : r;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetVgpuSchedulerState(nvmlGpuInstance_t handle, nvmlVgpuSchedulerState_v1_t *out) {
    OPEN(READ, "%s", name_of(handle));
    device_t d = {0};
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(out->version == NVML_VERSION_WORD(*out, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (r == NVML_SUCCESS)
        r = sched_instance(&c, handle, false, &d);
    if (r == NVML_SUCCESS) {
        out->schedulerPolicy = (unsigned int)d.gi->sched_policy;
        out->arrMode = (unsigned int)d.gi->sched_arr;
        bool arr = d.gi->sched_arr == 2;
        out->params[0] = (unsigned int)(arr ? d.gi->sched_avg : d.gi->sched_time);
        out->params[1] = (unsigned int)(arr ? d.gi->sched_time : 0);
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceSetVgpuSchedulerState(nvmlGpuInstance_t handle,
                                                         const nvmlVgpuSchedulerState_v1_t *in) {
    OPEN(WRITE, "%s, \"policy\": %u", name_of(handle), in ? in->schedulerPolicy : 0);
    device_t d = {0};
    NEEDS(in, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(in->version == NVML_VERSION_WORD(*in, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (r == NVML_SUCCESS)
        r = sched_instance(&c, handle, true, &d);
    if (r == NVML_SUCCESS)
        r = sched_set(&c, &d, in->schedulerPolicy, in->arrMode, in->arrMode == 2 ? in->params[0] : 0,
                      in->arrMode == 2 ? in->params[1] : in->params[0]);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetVgpuSchedulerState_v2(nvmlGpuInstance_t handle, nvmlVgpuSchedulerState_v2_t *out) {
    OPEN(READ, "%s", name_of(handle));
    device_t d = {0};
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = sched_instance(&c, handle, false, &d);
    if (r == NVML_SUCCESS) {
        out->schedulerPolicy = (unsigned int)d.gi->sched_policy;
        out->avgFactor = (unsigned int)d.gi->sched_avg;
        out->time = (unsigned int)d.gi->sched_time;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceSetVgpuSchedulerState_v2(nvmlGpuInstance_t handle,
                                                            const nvmlVgpuSchedulerState_v2_t *in) {
    OPEN(WRITE, "%s, \"policy\": %u", name_of(handle), in ? in->schedulerPolicy : 0);
    device_t d = {0};
    NEEDS(in, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = sched_instance(&c, handle, true, &d);
    if (r == NVML_SUCCESS)
        r = sched_set(&c, &d, in->schedulerPolicy, in->avgFactor ? 2 : 0, in->avgFactor, in->time);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetVgpuSchedulerCapabilities(nvmlDevice_t handle, nvmlVgpuSchedulerCapabilities_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(is_host(&d), NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        *out = (nvmlVgpuSchedulerCapabilities_t){{1, 2, 3}, MAX_SLICE_NS, MIN_SLICE_NS, 1, 0x3C0, 0x3F, 0x3C, 1};
    return call_end(&c, r);
}
