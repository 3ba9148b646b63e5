/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* MIG mode, GPU instances, compute instances, MIG devices. */
#include "api.h"

#include <stdio.h>

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(current && pending, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->mig, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        *current = (unsigned int)d.g->mig_current;
        *pending = (unsigned int)d.g->mig_pending;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t handle, unsigned int mode, nvmlReturn_t *activation) {
    nvmlReturn_t status = NVML_SUCCESS;
    OPEN(WRITE, "%s, \"mode\": %u", name_of(handle), mode);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(activation, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->mig, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        r = may_write(&c);
    if (r == NVML_SUCCESS)
        r = mig_set_mode(&d, mode, &status, &c.changed);
    if (r == NVML_SUCCESS) {
        *activation = status;
        call_result(&c, "\"activation\": \"%s\", \"current\": %d, \"pending\": %d", error_name(status), d.g->mig_current,
                    d.g->mig_pending);
    }
    return call_end(&c, r);
}

/* ---- GPU instance profiles ---- */

static void fill_profile(const profile_t *p, nvmlGpuInstanceProfileInfo_t *out) {
    *out = (nvmlGpuInstanceProfileInfo_t){
        .id = (unsigned int)p->id,
        .isP2pSupported = (unsigned int)p->p2p,
        .sliceCount = (unsigned int)p->slices,
        .instanceCount = (unsigned int)p->max,
        .multiprocessorCount = (unsigned int)p->sm,
        .copyEngineCount = (unsigned int)p->ce,
        .decoderCount = (unsigned int)p->dec,
        .encoderCount = (unsigned int)p->enc,
        .jpegCount = (unsigned int)p->jpeg,
        .ofaCount = (unsigned int)p->ofa,
        .memorySizeMB = (unsigned long long)p->memory_mib,
    };
}

static nvmlReturn_t find_profile(const call_t *c, const device_t *d, unsigned int query, const profile_t **out) {
    if (query >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    int i = mig_answers(c, d) ? profile_by_query(d->b, query) : -1;
    if (i == -1)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = &d->b->profiles[i];
    return NVML_SUCCESS;
}

static nvmlReturn_t find_profile_id(const call_t *c, const device_t *d, unsigned int id, int *out) {
    if (!mig_answers(c, d))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = profile_by_id(d->b, id);
    return *out == -1 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

/* The version word sits first in the versioned structs; which one it is decides how much is written. */
static nvmlReturn_t put_profile_v(const profile_t *p, void *out) {
    unsigned int version = *(unsigned int *)out;
    nvmlGpuInstanceProfileInfo_t info;
    fill_profile(p, &info);
    if (version == NVML_VERSION_WORD(nvmlGpuInstanceProfileInfo_v2_t, 2)) {
        nvmlGpuInstanceProfileInfo_v2_t *v2 = out;
        *v2 = (nvmlGpuInstanceProfileInfo_v2_t){
            version, info.id, info.isP2pSupported, info.sliceCount, info.instanceCount, info.multiprocessorCount,
            info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount,
            info.memorySizeMB, ""};
        snprintf(v2->name, sizeof v2->name, "MIG %s", p->name);
        return NVML_SUCCESS;
    }
    if (version == NVML_VERSION_WORD(nvmlGpuInstanceProfileInfo_v3_t, 3)) {
        nvmlGpuInstanceProfileInfo_v3_t *v3 = out;
        *v3 = (nvmlGpuInstanceProfileInfo_v3_t){
            version, info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount, info.copyEngineCount,
            info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount, info.memorySizeMB, "",
            (unsigned int)p->capabilities};
        snprintf(v3->name, sizeof v3->name, "MIG %s", p->name);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t handle, unsigned int profile,
                                                        nvmlGpuInstanceProfileInfo_t *out) {
    const profile_t *p = NULL;
    OPEN(READ, "%s, \"profile\": %u", name_of(handle), profile);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_profile(&c, &d, profile, &p);
    if (r == NVML_SUCCESS)
        fill_profile(p, out);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t handle, unsigned int profile, void *out) {
    const profile_t *p = NULL;
    OPEN(READ, "%s, \"profile\": %u", name_of(handle), profile);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_profile(&c, &d, profile, &p);
    if (r == NVML_SUCCESS)
        r = put_profile_v(p, out);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t handle, unsigned int id, void *out) {
    int i = -1;
    OPEN(READ, "%s, \"id\": %u", name_of(handle), id);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_profile_id(&c, &d, id, &i);
    if (r == NVML_SUCCESS)
        r = put_profile_v(&d.b->profiles[i], out);
    return call_end(&c, r);
}

static nvmlReturn_t possible_placements(const char *name, nvmlDevice_t handle, unsigned int id, nvmlPlacement_t *out,
                                        unsigned int *count) {
    int i = -1;
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "%s, \"id\": %u", name_of(handle), id);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(count, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_profile_id(&c, &d, id, &i);
    if (r == NVML_SUCCESS) {
        const profile_t *p = &d.b->profiles[i];
        *count = (unsigned int)p->nplaces;
        for (int k = 0; out && k < p->nplaces; k++)
            out[k] = (nvmlPlacement_t){(unsigned int)p->starts[k], (unsigned int)p->size};
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t handle, unsigned int id,
                                                               nvmlPlacement_t *out, unsigned int *count) {
    return possible_placements(__func__, handle, id, out, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t handle, unsigned int id,
                                                                  nvmlPlacement_t *out, unsigned int *count) {
    return possible_placements(__func__, handle, id, out, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t handle, unsigned int id,
                                                              unsigned int *count) {
    int i = -1;
    OPEN(READ, "%s, \"id\": %u", name_of(handle), id);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(count, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_profile_id(&c, &d, id, &i);
    if (r == NVML_SUCCESS)
        *count = gi_capacity(&d, i);
    return call_end(&c, r);
}

/* ---- GPU instances ---- */

static nvmlReturn_t create_gi(const char *name, nvmlDevice_t handle, unsigned int id, const nvmlPlacement_t *place,
                              bool placed, nvmlGpuInstance_t *out) {
    gi_t *gi = NULL;
    call_t c;
    char where[64] = "";
    if (place)
        snprintf(where, sizeof where, ", \"start\": %u, \"size\": %u", place->start, place->size);
    nvmlReturn_t r = call_begin(&c, name, WRITE, "%s, \"id\": %u%s", name_of(handle), id, where);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out && (!placed || place), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = may_write(&c);
    if (r == NVML_SUCCESS)
        r = mig_create_gi(&c, &d, id, place, &gi);
    if (r == NVML_SUCCESS) {
        const profile_t *p = &d.b->profiles[gi->profile];
        *out = gi_handle(d.n, gi);
        c.changed = true;
        call_result(&c, "\"gi\": %d, \"profile\": \"%s\", \"start\": %d, \"size\": %d", gi->id, p->name, gi->start,
                    p->size);
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t handle, unsigned int id, nvmlGpuInstance_t *out) {
    return create_gi(__func__, handle, id, NULL, false, out);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t handle, unsigned int id,
                                                             const nvmlPlacement_t *place, nvmlGpuInstance_t *out) {
    return create_gi(__func__, handle, id, place, true, out);
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle) {
    OPEN(WRITE, "%s", name_of(handle));
    device_t d = {0};
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    if (r == NVML_SUCCESS)
        r = may_write(&c);
    NEEDS(gi_members(d.g, d.gi) == 0 && !has_holder(d.g, -1, -1), NVML_ERROR_IN_USE);
    if (r == NVML_SUCCESS) {
        const profile_t *p = gi_profile(&d);
        call_result(&c, "\"profile\": \"%s\", \"start\": %d, \"size\": %d", p->name, d.gi->start, p->size);
        d.gi->used = 0;
        c.changed = true;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t handle, unsigned int id, nvmlGpuInstance_t *out,
                                              unsigned int *count) {
    OPEN(READ, "%s, \"id\": %u", name_of(handle), id);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out && count, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->mig && d.g->mig_current, NVML_ERROR_NOT_SUPPORTED);
    NEEDS(profile_by_id(d.b, id) != -1, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        int profile = profile_by_id(d.b, id);
        *count = 0;
        for (int i = 0; i < MAX_GIS; i++)
            if (d.g->gis[i].used && d.g->gis[i].profile == profile && sees_gi(&c, d.n, d.g->gis[i].id))
                out[(*count)++] = gi_handle(d.n, &d.g->gis[i]);
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned int id, nvmlGpuInstance_t *out) {
    OPEN(READ, "%s, \"gi\": %u", name_of(handle), id);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->mig && d.g->mig_current, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        const gi_t *gi = gi_by_id(d.g, (int)id);
        if (gi && sees_gi(&c, d.n, gi->id))
            *out = gi_handle(d.n, gi);
        else
            r = NVML_ERROR_NOT_FOUND;
    }
    return call_end(&c, r);
}

static nvmlReturn_t gi_info(const char *name, nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *out) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "%s", name_of(handle));
    device_t d = {0};
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    if (r == NVML_SUCCESS) {
        const profile_t *p = gi_profile(&d);
        *out = (nvmlGpuInstanceInfo_t){device_handle(d.n), (unsigned int)d.gi->id, (unsigned int)p->id,
                                       {(unsigned int)d.gi->start, (unsigned int)p->size}};
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *out) {
    return gi_info(__func__, handle, out);
}

/* ---- compute instance profiles ---- */

static nvmlReturn_t find_ci_profile(const device_t *d, unsigned int query, unsigned int engine,
                                    const ci_profile_t **out) {
    if (query >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engine >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    const profile_t *p = gi_profile(d);
    for (int i = 0; i < p->ncis; i++)
        if ((unsigned int)p->cis[i].query == query) {
            *out = &p->cis[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_SUPPORTED;
}

static const ci_profile_t *ci_profile_by_id(const device_t *d, unsigned int id) {
    const profile_t *p = gi_profile(d);
    for (int i = 0; i < p->ncis; i++)
        if ((unsigned int)p->cis[i].id == id)
            return &p->cis[i];
    return NULL;
}

static void fill_ci_profile(const device_t *d, const ci_profile_t *p, nvmlComputeInstanceProfileInfo_t *out) {
    const profile_t *gi = gi_profile(d);
    *out = (nvmlComputeInstanceProfileInfo_t){
        .id = (unsigned int)p->id,
        .sliceCount = (unsigned int)p->slices,
        .instanceCount = (unsigned int)p->max,
        .multiprocessorCount = (unsigned int)p->sm,
        .sharedCopyEngineCount = (unsigned int)gi->ce,
        .sharedDecoderCount = (unsigned int)gi->dec,
        .sharedEncoderCount = (unsigned int)gi->enc,
        .sharedJpegCount = (unsigned int)gi->jpeg,
        .sharedOfaCount = (unsigned int)gi->ofa,
    };
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned int profile,
                                                                 unsigned int engine,
                                                                 nvmlComputeInstanceProfileInfo_t *out) {
    const ci_profile_t *p = NULL;
    OPEN(READ, "%s, \"profile\": %u", name_of(handle), profile);
    device_t d = {0};
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    if (r == NVML_SUCCESS)
        r = find_ci_profile(&d, profile, engine, &p);
    if (r == NVML_SUCCESS)
        fill_ci_profile(&d, p, out);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t handle, unsigned int profile,
                                                                  unsigned int engine,
                                                                  nvmlComputeInstanceProfileInfo_v2_t *out) {
    const ci_profile_t *p = NULL;
    OPEN(READ, "%s, \"profile\": %u", name_of(handle), profile);
    device_t d = {0};
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    if (r == NVML_SUCCESS)
        r = find_ci_profile(&d, profile, engine, &p);
    NEEDS(out->version == NVML_VERSION_WORD(*out, 2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (r == NVML_SUCCESS) {
        nvmlComputeInstanceProfileInfo_t info;
        fill_ci_profile(&d, p, &info);
        *out = (nvmlComputeInstanceProfileInfo_v2_t){
            out->version, info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount,
            info.sharedCopyEngineCount, info.sharedDecoderCount, info.sharedEncoderCount, info.sharedJpegCount,
            info.sharedOfaCount, ""};
        if (p->slices == gi_profile(&d)->slices)
            snprintf(out->name, sizeof out->name, "MIG %s", gi_profile(&d)->name);
        else
            snprintf(out->name, sizeof out->name, "MIG %dc.%s", p->slices, gi_profile(&d)->name);
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t handle, unsigned int id,
                                                                        nvmlPlacement_t *out, unsigned int *count) {
    OPEN(READ, "%s, \"id\": %u", name_of(handle), id);
    device_t d = {0};
    NEEDS(count, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    NEEDS(ci_profile_by_id(&d, id), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        const ci_profile_t *p = ci_profile_by_id(&d, id);
        *count = (unsigned int)p->nstarts;
        for (int i = 0; out && i < p->nstarts; i++)
            out[i] = (nvmlPlacement_t){(unsigned int)p->starts[i], (unsigned int)p->slices};
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle, unsigned int id,
                                                                       unsigned int *count) {
    OPEN(READ, "%s, \"id\": %u", name_of(handle), id);
    device_t d = {0};
    NEEDS(count, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    NEEDS(ci_profile_by_id(&d, id), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *count = ci_capacity(&d, ci_profile_by_id(&d, id));
    return call_end(&c, r);
}

/* ---- compute instances ---- */

static nvmlReturn_t create_ci(const char *name, nvmlGpuInstance_t handle, unsigned int id,
                              const nvmlPlacement_t *place, bool placed, nvmlComputeInstance_t *out) {
    ci_t *ci = NULL;
    call_t c;
    char where[64] = "";
    if (place)
        snprintf(where, sizeof where, ", \"start\": %u, \"size\": %u", place->start, place->size);
    nvmlReturn_t r = call_begin(&c, name, WRITE, "%s, \"id\": %u%s", name_of(handle), id, where);
    device_t d = {0};
    NEEDS(out && (!placed || place), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    if (r == NVML_SUCCESS)
        r = may_write(&c);
    if (r == NVML_SUCCESS)
        r = mig_create_ci(&c, &d, id, place, &ci);
    if (r == NVML_SUCCESS) {
        *out = ci_handle(d.n, ci);
        c.changed = true;
        call_result(&c, "\"ci\": %d, \"start\": %d, \"size\": %d, \"uuid\": \"%s\"", ci->id, ci->start,
                    ci_profile(&d, ci)->slices, ci->uuid);
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned int id,
                                                         nvmlComputeInstance_t *out) {
    return create_ci(__func__, handle, id, NULL, false, out);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t handle, unsigned int id,
                                                                      const nvmlPlacement_t *place,
                                                                      nvmlComputeInstance_t *out) {
    return create_ci(__func__, handle, id, place, true, out);
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle) {
    OPEN(WRITE, "%s", name_of(handle));
    device_t d = {0};
    if (r == NVML_SUCCESS)
        r = find_ci(&c, handle, &d);
    if (r == NVML_SUCCESS)
        r = may_write(&c);
    /* A process, or a handle that a client leaked: no process is to be seen then (go-nvml issue 146). */
    NEEDS(!has_holder(d.g, d.ci->gi, d.ci->id), NVML_ERROR_IN_USE);
    if (r == NVML_SUCCESS) {
        call_result(&c, "\"uuid\": \"%s\"", d.ci->uuid);
        mig_remove_ci(d.g, d.b, d.ci);
        c.changed = true;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned int id,
                                                       nvmlComputeInstance_t *out, unsigned int *count) {
    OPEN(READ, "%s, \"id\": %u", name_of(handle), id);
    device_t d = {0};
    NEEDS(out && count, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    NEEDS(ci_profile_by_id(&d, id), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        *count = 0;
        for (int i = 0; i < MAX_CIS; i++) {
            const ci_t *ci = &d.g->cis[i];
            if (ci->used && ci->gi == d.gi->id && ci_profile(&d, ci) == ci_profile_by_id(&d, id) &&
                sees_ci(&c, d.n, ci))
                out[(*count)++] = ci_handle(d.n, ci);
        }
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned int id,
                                                          nvmlComputeInstance_t *out) {
    OPEN(READ, "%s, \"ci\": %u", name_of(handle), id);
    device_t d = {0};
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_gi(&c, handle, &d);
    if (r == NVML_SUCCESS) {
        const ci_t *ci = ci_by_id(d.g, d.gi->id, (int)id);
        if (ci && sees_ci(&c, d.n, ci))
            *out = ci_handle(d.n, ci);
        else
            r = NVML_ERROR_NOT_FOUND;
    }
    return call_end(&c, r);
}

static nvmlReturn_t ci_info(const char *name, nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *out) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "%s", name_of(handle));
    device_t d = {0};
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = find_ci(&c, handle, &d);
    if (r == NVML_SUCCESS) {
        const ci_profile_t *p = ci_profile(&d, d.ci);
        *out = (nvmlComputeInstanceInfo_t){mig_handle(d.n, d.ci), gi_handle(d.n, d.gi), (unsigned int)d.ci->id,
                                           (unsigned int)p->id,
                                           {(unsigned int)d.ci->start, (unsigned int)p->slices}};
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *out) {
    return ci_info(__func__, handle, out);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *out) {
    return ci_info(__func__, handle, out);
}

/* ---- MIG devices: a handle is a compute instance; a GPU instance without one is invisible here ---- */

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = d.ci != NULL;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned int *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.ci, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = (unsigned int)d.gi->id;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned int *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.ci, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = (unsigned int)d.ci->id;
    return call_end(&c, r);
}

static unsigned int max_migs(const device_t *d) {
    return d->b->mig && d->g->mig_current ? (unsigned int)d->b->compute_slices : 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = max_migs(&d);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned int index, nvmlDevice_t *out) {
    OPEN(READ, "%s, \"index\": %u", name_of(handle), index);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->mig && d.g->mig_current, NVML_ERROR_NOT_SUPPORTED);
    NEEDS(index < max_migs(&d), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        r = NVML_ERROR_NOT_FOUND;
        for (int i = 0; i < MAX_CIS; i++) {
            const ci_t *ci = &d.g->cis[i];
            if (ci->used && visible_index(&c, &d, ci) == (int)index) {
                *out = mig_handle(d.n, ci);
                r = NVML_SUCCESS;
            }
        }
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.ci, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = device_handle(d.n);
    return call_end(&c, r);
}

static nvmlReturn_t attributes(const char *name, nvmlDevice_t handle, nvmlDeviceAttributes_t *out) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.ci, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        const profile_t *p = gi_profile(&d);
        const ci_profile_t *ci = ci_profile(&d, d.ci);
        *out = (nvmlDeviceAttributes_t){(unsigned int)ci->sm, (unsigned int)p->ce, (unsigned int)p->dec,
                                        (unsigned int)p->enc, (unsigned int)p->jpeg, (unsigned int)p->ofa,
                                        (unsigned int)p->slices, (unsigned int)ci->slices,
                                        (unsigned long long)p->memory_mib};
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t handle, nvmlDeviceAttributes_t *out) {
    return attributes(__func__, handle, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *out) {
    return attributes(__func__, handle, out);
}
