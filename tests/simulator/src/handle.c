/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* Handles: an identity packed into the pointer, so that nothing needs freeing and garbage is recognised.
 *
 * kind (4 bits), GPU (8), GPU instance id (12), compute instance id (8), birth (32). The birth number makes a handle
 * to a destroyed instance invalid even when the same id is given out again.
 */
#include "sim.h"

#include <stdio.h>
#include <unistd.h>

enum { KIND_GPU = 1, KIND_MIG, KIND_GI, KIND_CI };

static void *pack(int kind, int gpu, int gi, int ci, unsigned int birth) {
    return (void *)(((uintptr_t)kind << 60) | ((uintptr_t)gpu << 52) | ((uintptr_t)gi << 40) | ((uintptr_t)ci << 32) |
                    birth);
}

static int unpack(const void *handle, handle_t *h) {
    uintptr_t v = (uintptr_t)handle;
    h->gpu = (int)((v >> 52) & 0xff);
    h->gi = (int)((v >> 40) & 0xfff);
    h->ci = (int)((v >> 32) & 0xff);
    h->birth = (unsigned int)v;
    return (int)(v >> 60);
}

nvmlDevice_t device_handle(int gpu) {
    return pack(KIND_GPU, gpu, 0, 0, 0);
}

nvmlDevice_t mig_handle(int gpu, const ci_t *ci) {
    return pack(KIND_MIG, gpu, ci->gi, ci->id, ci->birth);
}

nvmlGpuInstance_t gi_handle(int gpu, const gi_t *gi) {
    return pack(KIND_GI, gpu, gi->id, 0, gi->birth);
}

nvmlComputeInstance_t ci_handle(int gpu, const ci_t *ci) {
    return pack(KIND_CI, gpu, ci->gi, ci->id, ci->birth);
}

const char *name_of(const void *handle) {
    static __thread char turns[4][160];
    static __thread unsigned int turn;
    char *out = turns[turn++ % 4];
    handle_t h;
    int kind = unpack(handle, &h);
    const char *uuid = sim && kind >= KIND_GPU && kind <= KIND_CI && h.gpu < sim->ngpus ? sim->gpus[h.gpu].uuid : NULL;
    if (!uuid)
        snprintf(out, sizeof turns[0], "\"gpu\": null");
    else if (kind == KIND_GPU)
        snprintf(out, sizeof turns[0], "\"gpu\": \"%s\"", uuid);
    else if (kind == KIND_GI)
        snprintf(out, sizeof turns[0], "\"gpu\": \"%s\", \"gi\": %d", uuid, h.gi);
    else
        snprintf(out, sizeof turns[0], "\"gpu\": \"%s\", \"gi\": %d, \"ci\": %d", uuid, h.gi, h.ci);
    return out;
}

static nvmlReturn_t find_gpu(const call_t *c, int n, device_t *out) {
    if (n >= sim->ngpus)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = (device_t){.n = n, .g = &c->s->gpus[n], .stat = &sim->gpus[n], .b = &sim->boards[sim->gpus[n].board]};
    if (!sees_gpu(c, n))
        return NVML_ERROR_INVALID_ARGUMENT;
    return out->g->lost || out->g->removed ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t find_device(const call_t *c, nvmlDevice_t handle, int kind, device_t *out) {
    handle_t h;
    int what = unpack(handle, &h);
    if (what != KIND_GPU && what != KIND_MIG)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t r = find_gpu(c, h.gpu, out);
    if (r != NVML_SUCCESS || what == KIND_GPU)
        return r;
    out->gi = gi_by_id(out->g, h.gi);
    out->ci = ci_by_id(out->g, h.gi, h.ci);
    if (!out->gi || !out->ci || out->ci->birth != h.birth || !sees_ci(c, out->n, out->ci))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (kind == WHOLE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    return kind == WHOLE_GPU_READING ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t find_gi(const call_t *c, nvmlGpuInstance_t handle, device_t *out) {
    handle_t h;
    if (unpack(handle, &h) != KIND_GI)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t r = find_gpu(c, h.gpu, out);
    if (r != NVML_SUCCESS)
        return r;
    out->gi = gi_by_id(out->g, h.gi);
    return out->gi && out->gi->birth == h.birth ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t find_ci(const call_t *c, nvmlComputeInstance_t handle, device_t *out) {
    handle_t h;
    if (unpack(handle, &h) != KIND_CI)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t r = find_gpu(c, h.gpu, out);
    if (r != NVML_SUCCESS)
        return r;
    out->gi = gi_by_id(out->g, h.gi);
    out->ci = ci_by_id(out->g, h.gi, h.ci);
    return out->gi && out->ci && out->ci->birth == h.birth ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t may_write(const call_t *c) {
    if (c->s->permission == PERMISSION_DENIED || (c->s->permission == PERMISSION_ROOT && geteuid() != 0))
        return NVML_ERROR_NO_PERMISSION;
    return NVML_SUCCESS;
}

/* NVML counts the GPUs that are on the bus and that the process may open: one that is not leaves no gap. */
bool is_counted(const call_t *c, int n) {
    return !c->s->gpus[n].removed && sees_gpu(c, n);
}

int gpu_count(const call_t *c) {
    int n = 0;
    for (int i = 0; i < sim->ngpus; i++)
        n += is_counted(c, i);
    return n;
}

int gpu_at_index(const call_t *c, unsigned int index) {
    for (int i = 0; i < sim->ngpus; i++)
        if (is_counted(c, i) && index-- == 0)
            return i;
    return -1;
}

int index_of_gpu(const call_t *c, int n) {
    int index = 0;
    for (int i = 0; i < n; i++)
        index += is_counted(c, i);
    return index;
}
