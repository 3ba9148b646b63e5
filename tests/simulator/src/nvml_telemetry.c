/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* Readings and settings: load, heat, power, clocks, persistence, ECC, compute mode, field values. */
#include "api.h"

#include <time.h>

/* ---- load: a GPU in MIG mode has no utilisation of its own (partitioning.md, section 3) ---- */

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(!d.g->mig_current, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        *out = (nvmlUtilization_t){(unsigned int)d.g->util_gpu, (unsigned int)d.g->util_memory};
    return call_end(&c, r);
}

#define ENGINE_LOAD(function, member) \
    EXPORT nvmlReturn_t function(nvmlDevice_t handle, unsigned int *out, unsigned int *period) { \
        OPEN(READ, "%s", name_of(handle)); \
        DEVICE(handle, WHOLE_GPU_READING); \
        NEEDS(out && period, NVML_ERROR_INVALID_ARGUMENT); \
        NEEDS(!d.g->mig_current, NVML_ERROR_NOT_SUPPORTED); \
        if (r == NVML_SUCCESS) { \
            *out = (unsigned int)d.g->member; \
            *period = 167000; \
        } \
        return call_end(&c, r); \
    }

ENGINE_LOAD(nvmlDeviceGetEncoderUtilization, util_encoder)
ENGINE_LOAD(nvmlDeviceGetDecoderUtilization, util_decoder)

/* ---- heat ---- */

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, unsigned int sensor, unsigned int *out) {
    OPEN(READ, "%s, \"sensor\": %u", name_of(handle), sensor);
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out && sensor == 0, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = (unsigned int)d.g->temperature;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(out->version == NVML_VERSION_WORD(*out, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEEDS(out->sensorType == 0, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        out->temperature = d.g->temperature;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t handle, nvmlMarginTemperature_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(out->version == NVML_VERSION_WORD(*out, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (r == NVML_SUCCESS)
        out->marginTemperature = d.b->temp_slowdown - d.g->temperature;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t handle, unsigned int kind, unsigned int *out) {
    OPEN(READ, "%s, \"kind\": %u", name_of(handle), kind);
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out && kind < 8, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(kind < 4, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        const int values[] = {d.b->temp_shutdown, d.b->temp_slowdown, d.b->temp_mem_max, d.b->temp_gpu_max};
        *out = (unsigned int)values[kind];
    }
    return call_end(&c, r);
}

NUMBER(nvmlDeviceGetFanSpeed, WHOLE_GPU_READING, d.b->fan, d.g->fan_speed)
NUMBER(nvmlDeviceGetNumFans, WHOLE_GPU_READING, true, d.b->fan ? 1 : 0)

/* ---- power ---- */

NUMBER(nvmlDeviceGetPowerUsage, WHOLE_GPU_READING, true, d.g->power_mw)
NUMBER(nvmlDeviceGetPowerManagementMode, WHOLE_GPU_READING, true, 1)
NUMBER(nvmlDeviceGetPowerManagementLimit, WHOLE_GPU_READING, true, d.g->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, WHOLE_GPU_READING, true, d.b->power_default_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, WHOLE_GPU_READING, true, d.g->power_limit_mw)

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t handle, unsigned int *low,
                                                                 unsigned int *high) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(low && high, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        *low = (unsigned int)d.b->power_min_mw;
        *high = (unsigned int)d.b->power_max_mw;
    }
    return call_end(&c, r);
}

static bool power_in_range(const device_t *d, unsigned int mw) {
    return mw >= (unsigned int)d->b->power_min_mw && mw <= (unsigned int)d->b->power_max_mw;
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t handle, unsigned int mw) {
    OPEN(WRITE, "%s, \"mw\": %u", name_of(handle), mw);
    DEVICE_FOR_ROOT(handle);
    NEEDS(power_in_range(&d, mw), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        set_int(&c, &d.g->power_limit_mw, (int)mw);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t handle, const nvmlPowerValue_v2_t *value) {
    OPEN(WRITE, "%s, \"mw\": %u", name_of(handle), value ? value->powerValueMw : 0);
    DEVICE_FOR_ROOT(handle);
    NEEDS(value, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(value->version == NVML_VERSION_WORD(*value, 2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEEDS(value->powerScope < 4, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(value->powerScope == 0, NVML_ERROR_NOT_SUPPORTED); /* module and memory scopes: boards we do not have */
    NEEDS(power_in_range(&d, value->powerValueMw), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        set_int(&c, &d.g->power_limit_mw, (int)value->powerValueMw);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = d.g->energy_mj;
    return call_end(&c, r);
}

/* ---- clocks ---- */

static bool under_load(const device_t *d) {
    return d->g->util_gpu > 0 || has_any_holder(d->g);
}

static int max_clock(const device_t *d, unsigned int kind) {
    int video = d->b->clock_video ? d->b->clock_video : d->b->clock_sm;
    return kind == 2 ? d->b->clock_mem : kind == 3 ? video : d->b->clock_sm;
}

/* An idle board runs its SMs at about a seventh; what exactly does not matter, only that it can be set and read. */
static int clock_now(const device_t *d, unsigned int kind) {
    int set = kind == 2 ? d->g->clock_mem_now : d->g->clock_sm_now;
    if (set >= 0)
        return set;
    int follows = under_load(d) || kind == 2 ? max_clock(d, kind) : max_clock(d, kind) / 7;
    const int *lock = kind == 2 ? d->g->lock_mem : d->g->lock_sm;
    if (lock[1] == 0)
        return follows;
    return follows < lock[0] ? lock[0] : follows > lock[1] ? lock[1] : follows;
}

#define CLOCK(function, value) \
    EXPORT nvmlReturn_t function(nvmlDevice_t handle, unsigned int kind, unsigned int *out) { \
        OPEN(READ, "%s, \"clock\": %u", name_of(handle), kind); \
        DEVICE(handle, WHOLE_GPU_READING); \
        NEEDS(out && kind < 4, NVML_ERROR_INVALID_ARGUMENT); \
        NEEDS(max_clock(&d, kind) > 0, NVML_ERROR_NOT_SUPPORTED); \
        if (r == NVML_SUCCESS) \
            *out = (unsigned int)(value); \
        return call_end(&c, r); \
    }

CLOCK(nvmlDeviceGetClockInfo, clock_now(&d, kind))
CLOCK(nvmlDeviceGetMaxClockInfo, max_clock(&d, kind))

/* Locked clocks: graphics from Volta on, memory from Ampere on (nvml.h). NVML has no call that reads a lock back.
 * `high` 0 takes the lock away. */
static nvmlReturn_t lock_clocks(const char *name, nvmlDevice_t handle, unsigned int kind, unsigned int low,
                                unsigned int high, bool reset) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, WRITE, "%s, \"low\": %u, \"high\": %u", name_of(handle), low, high);
    DEVICE_FOR_ROOT(handle);
    NEEDS(d.b->arch >= (kind == 2 ? 7 : 5), NVML_ERROR_NOT_SUPPORTED);
    NEEDS(reset || (high > 0 && low <= high && high <= (unsigned int)max_clock(&d, kind)), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        int *lock = kind == 2 ? d.g->lock_mem : d.g->lock_sm;
        c.changed = lock[0] != (int)low || lock[1] != (int)high;
        lock[0] = (int)low;
        lock[1] = (int)high;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t handle, unsigned int low, unsigned int high) {
    return lock_clocks(__func__, handle, 0, low, high, false);
}

EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t handle) {
    return lock_clocks(__func__, handle, 0, 0, 0, true);
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t handle, unsigned int low, unsigned int high) {
    return lock_clocks(__func__, handle, 2, low, high, false);
}

EXPORT nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t handle) {
    return lock_clocks(__func__, handle, 2, 0, 0, true);
}

NUMBER(nvmlDeviceGetPerformanceState, WHOLE_GPU_READING, true, under_load(&d) ? 0 : 8)
NUMBER(nvmlDeviceGetPowerState, WHOLE_GPU_READING, true, under_load(&d) ? 0 : 8)

#define WIDE(function, value) \
    EXPORT nvmlReturn_t function(nvmlDevice_t handle, unsigned long long *out) { \
        OPEN(READ, "%s", name_of(handle)); \
        DEVICE(handle, WHOLE_GPU_READING); \
        NEEDS(out, NVML_ERROR_INVALID_ARGUMENT); \
        if (r == NVML_SUCCESS) \
            *out = (value); \
        return call_end(&c, r); \
    }

WIDE(nvmlDeviceGetCurrentClocksEventReasons, d.g->clock_reasons)
WIDE(nvmlDeviceGetCurrentClocksThrottleReasons, d.g->clock_reasons)
WIDE(nvmlDeviceGetSupportedClocksEventReasons, 0x1FFull)
WIDE(nvmlDeviceGetSupportedClocksThrottleReasons, 0x1FFull)

/* ---- persistence and compute mode ---- */

NUMBER(nvmlDeviceGetPersistenceMode, WHOLE_GPU_READING, true, d.g->persistence)
NUMBER(nvmlDeviceGetComputeMode, WHOLE_GPU_READING, true, d.g->compute_mode)

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t handle, unsigned int mode) {
    OPEN(WRITE, "%s, \"mode\": %u", name_of(handle), mode);
    DEVICE_FOR_ROOT(handle);
    NEEDS(mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        set_int(&c, &d.g->persistence, (int)mode);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t handle, unsigned int mode) {
    OPEN(WRITE, "%s, \"mode\": %u", name_of(handle), mode);
    DEVICE_FOR_ROOT(handle);
    NEEDS(mode < 4, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(mode != 1, NVML_ERROR_NOT_SUPPORTED); /* exclusive thread: removed long ago */
    NEEDS(mode != 3 || !d.g->mig_current, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        set_int(&c, &d.g->compute_mode, (int)mode);
    return call_end(&c, r);
}

/* ---- ECC: a new mode waits for a reset or a reboot ---- */

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(current && pending, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->ecc_supported, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        *current = (unsigned int)d.g->ecc_current;
        *pending = (unsigned int)d.g->ecc_pending;
    }
    return call_end(&c, r);
}

NUMBER(nvmlDeviceGetDefaultEccMode, WHOLE_GPU_READING, d.b->ecc_supported, 1)

EXPORT nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t handle, unsigned int mode) {
    OPEN(WRITE, "%s, \"mode\": %u", name_of(handle), mode);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->ecc_supported, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        r = may_write(&c);
    if (r == NVML_SUCCESS)
        set_int(&c, &d.g->ecc_pending, (int)mode);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned int kind, unsigned int counter,
                                                unsigned long long *out) {
    OPEN(READ, "%s, \"kind\": %u, \"counter\": %u", name_of(handle), kind, counter);
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out && kind < 2 && counter < 2, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->ecc_supported && d.g->ecc_current, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        *out = d.g->ecc[kind][counter];
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t handle, unsigned int kind, unsigned int counter,
                                                    unsigned int location, unsigned long long *out) {
    OPEN(READ, "%s, \"kind\": %u, \"counter\": %u, \"location\": %u", name_of(handle), kind, counter, location);
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out && kind < 2 && counter < 2 && location < 8, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->ecc_supported && d.g->ecc_current, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        *out = location == 2 ? d.g->ecc[kind][counter] : 0; /* all errors are in device memory */
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t handle, unsigned int kind, unsigned int counter,
                                                   nvmlEccErrorCounts_t *out) {
    OPEN(READ, "%s, \"kind\": %u, \"counter\": %u", name_of(handle), kind, counter);
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out && kind < 2 && counter < 2, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->ecc_supported && d.g->ecc_current, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        *out = (nvmlEccErrorCounts_t){0, 0, d.g->ecc[kind][counter], 0};
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t handle, unsigned int counter) {
    OPEN(WRITE, "%s, \"counter\": %u", name_of(handle), counter);
    DEVICE_FOR_ROOT(handle);
    NEEDS(counter < 2, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->ecc_supported && d.g->ecc_current, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        c.changed = d.g->ecc[0][counter] || d.g->ecc[1][counter];
        d.g->ecc[0][counter] = d.g->ecc[1][counter] = 0;
    }
    return call_end(&c, r);
}

/* Ampere and newer remap rows, older boards retire pages. */
EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned int *corrected, unsigned int *uncorrected,
                                              unsigned int *pending, unsigned int *failure) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(corrected && uncorrected && pending && failure, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(!d.b->retired_pages, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        *corrected = (unsigned int)d.g->remapped[0];
        *uncorrected = (unsigned int)d.g->remapped[1];
        *pending = (unsigned int)d.g->remapped[2];
        *failure = (unsigned int)d.g->remapped[3];
    }
    return call_end(&c, r);
}

static nvmlReturn_t retired(const char *name, nvmlDevice_t handle, unsigned int cause, unsigned int *count,
                            unsigned long long *addresses, unsigned long long *times) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "%s, \"cause\": %u", name_of(handle), cause);
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(count && cause < 2, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->retired_pages, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        unsigned int room = *count, n = (unsigned int)d.g->retired[cause];
        for (unsigned int i = 0; i < n && i < room; i++) {
            if (addresses)
                addresses[i] = 0x10000ull * (i + 1);
            if (times)
                times[i] = 0;
        }
        *count = n;
        r = n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t handle, unsigned int cause, unsigned int *count,
                                              unsigned long long *addresses) {
    return retired(__func__, handle, cause, count, addresses, NULL);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t handle, unsigned int cause, unsigned int *count,
                                                 unsigned long long *addresses, unsigned long long *times) {
    return retired(__func__, handle, cause, count, addresses, times);
}

NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, WHOLE_GPU_READING, d.b->retired_pages, 0)

/* ---- field values ---- */

typedef struct {
    unsigned int id;
    unsigned int type;
    bool known;
    long long value;
} reading_t;

static reading_t power_field(unsigned int id, const device_t *d) {
    const int values[] = {d->g->power_mw, d->g->power_mw, d->b->power_min_mw, d->b->power_max_mw,
                          d->b->power_default_mw, d->g->power_limit_mw};
    if (id >= 185 && id <= 190)
        return (reading_t){id, NVML_VALUE_UNSIGNED, true, values[id - 185]};
    return (reading_t){id, NVML_VALUE_UNSIGNED, id == 192, d->g->power_limit_mw};
}

/* Margins to the thresholds that newer boards report: they count down to the threshold. */
static reading_t margin_field(unsigned int id, const device_t *d) {
    const int values[] = {d->b->temp_shutdown, d->b->temp_slowdown, d->b->temp_mem_max, d->b->temp_gpu_max};
    return (reading_t){id, NVML_VALUE_SIGNED_INT, d->b->arch >= 8, d->b->temp_slowdown - values[id - 193]};
}

static reading_t read_field(const call_t *c, unsigned int id, const device_t *d) {
    const gpu_t *g = d->g;
    bool ecc = d->b->ecc_supported != 0;
    switch (id) {
    case 1: /* ECC current */
        return (reading_t){id, NVML_VALUE_UNSIGNED, ecc, g->ecc_current};
    case 2: /* ECC pending */
        return (reading_t){id, NVML_VALUE_UNSIGNED, ecc, g->ecc_pending};
    case 3: /* ECC totals: corrected, then uncorrected; volatile, then aggregate */
    case 4:
        return (reading_t){id, NVML_VALUE_UNSIGNED_LONG_LONG, ecc && g->ecc_current, (long long)g->ecc[id - 3][0]};
    case 5:
    case 6:
        return (reading_t){id, NVML_VALUE_UNSIGNED_LONG_LONG, ecc && g->ecc_current, (long long)g->ecc[id - 5][1]};
    case 29: /* retired pages */
    case 30:
        return (reading_t){id, NVML_VALUE_UNSIGNED, d->b->retired_pages != 0, g->retired[id - 29]};
    case 82: /* memory temperature */
        return (reading_t){id, NVML_VALUE_UNSIGNED, true, g->memory_temperature};
    case 83: /* energy */
    case 191:
        return (reading_t){id, NVML_VALUE_UNSIGNED_LONG_LONG, true, (long long)g->energy_mj};
    case 91: /* NVLink links: none are simulated */
        return (reading_t){id, NVML_VALUE_UNSIGNED, true, 0};
    case 142: /* remapped rows */
    case 143:
    case 144:
    case 145:
        return (reading_t){id, NVML_VALUE_UNSIGNED, !d->b->retired_pages, g->remapped[id - 142]};
    case 184: /* a MIG mode change needs no reset */
        return (reading_t){id, NVML_VALUE_UNSIGNED, true, d->b->mig && d->b->resetless};
    case 199: /* MIG can be asked about while it is off */
        return (reading_t){id, NVML_VALUE_UNSIGNED, true, d->b->mig && (g->mig_current || mig_answers(c, d))};
    default:
        if (id >= 185 && id <= 192)
            return power_field(id, d);
        if (id >= 193 && id <= 196)
            return margin_field(id, d);
        return (reading_t){id, NVML_VALUE_UNSIGNED, false, 0};
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values) {
    OPEN(READ, "%s, \"count\": %d, \"first\": %u", name_of(handle), count, values && count > 0 ? values[0].fieldId : 0);
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(values && count > 0, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        for (int i = 0; i < count; i++) {
            nvmlFieldValue_t *v = &values[i];
            reading_t x = read_field(&c, v->fieldId, &d);
            bool exists = v->fieldId > 0 && v->fieldId < 308;
            v->timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
            v->latencyUsec = 0;
            v->valueType = x.type;
            v->nvmlReturn = x.known ? NVML_SUCCESS : exists ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
            v->value.ullVal = 0;
            if (x.known && x.type == NVML_VALUE_SIGNED_INT)
                v->value.siVal = (int)x.value;
            else if (x.known && x.type == NVML_VALUE_UNSIGNED)
                v->value.uiVal = (unsigned int)x.value;
            else if (x.known)
                v->value.ullVal = (unsigned long long)x.value;
        }
    }
    return call_end(&c, r);
}
