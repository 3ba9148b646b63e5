/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* The shape that every NVML function of the simulator has. */
#ifndef SIM_API_H
#define SIM_API_H

#include <string.h>

#include "sim.h"

/* Opens the call; every function goes on with `if (r == NVML_SUCCESS)` and leaves through call_end. */
#define OPEN(mode, ...) \
    call_t c; \
    nvmlReturn_t r = call_begin(&c, __func__, mode, __VA_ARGS__)

#define DEVICE(handle, kind) \
    device_t d = {0}; \
    if (r == NVML_SUCCESS) \
    r = find_device(&c, handle, kind, &d)

/* As DEVICE, for a call that wants root. */
#define DEVICE_FOR_ROOT(handle) \
    DEVICE(handle, WHOLE_GPU); \
    if (r == NVML_SUCCESS) \
    r = may_write(&c)

#define NEEDS(condition, code) \
    if (r == NVML_SUCCESS && !(condition)) \
    r = (code)

/* Most readings are one number of the board or of the GPU. */
#define NUMBER(function, kind, supported, value) \
    EXPORT nvmlReturn_t function(nvmlDevice_t handle, unsigned int *out) { \
        OPEN(READ, "%s", name_of(handle)); \
        DEVICE(handle, kind); \
        NEEDS(out, NVML_ERROR_INVALID_ARGUMENT); \
        NEEDS(supported, NVML_ERROR_NOT_SUPPORTED); \
        if (r == NVML_SUCCESS) \
            *out = (unsigned int)(value); \
        return call_end(&c, r); \
    }

static inline nvmlReturn_t put_text(char *out, unsigned int size, const char *text) {
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    copy_text(out, size, text);
    return NVML_SUCCESS;
}

/* A change of one int of the state; a write of the value that is there already is no change. */
static inline void set_int(call_t *c, int *field, int value) {
    c->changed = *field != value;
    *field = value;
}

#endif
