/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* Library, driver and bus: init, versions, finding GPUs, drain, remove and rescan. */
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static unsigned int references;

static nvmlReturn_t init_library(const char *name, unsigned int flags) {
    sim_lock_process();
    nvmlReturn_t r = NVML_SUCCESS;
    bool first = references == 0;
    /* Read at each first init: one process may look at several simulated hosts, one after another. */
    if (first)
        r = (nvmlReturn_t)sim_open(getenv("NVML_SIM_STATE"));
    if (r == NVML_SUCCESS)
        references++;
    sim_unlock_process();
    if (r != NVML_SUCCESS)
        return r;
    call_t c;
    r = call_end(&c, call_begin(&c, name, READ, "\"flags\": %u", flags));
    if (r != NVML_SUCCESS) {
        sim_lock_process();
        if (--references == 0)
            sim_close();
        sim_unlock_process();
    }
    return r;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    return init_library(__func__, flags);
}

EXPORT nvmlReturn_t nvmlInit_v2(void) {
    return init_library(__func__, 0);
}

EXPORT nvmlReturn_t nvmlInit(void) {
    return init_library(__func__, 0);
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
    OPEN(READ, "%s", "");
    /* A driver that went away under a client must not keep it from closing. */
    if (r == NVML_ERROR_DRIVER_NOT_LOADED)
        r = NVML_SUCCESS;
    r = call_end(&c, r);
    if (r == NVML_SUCCESS) {
        sim_lock_process();
        if (references > 0 && --references == 0)
            sim_close();
        sim_unlock_process();
    }
    return r;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int size) {
    OPEN(READ, "%s", "");
    if (r == NVML_SUCCESS)
        r = put_text(out, size, c.s->driver_version);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int size) {
    OPEN(READ, "%s", "");
    if (r == NVML_SUCCESS)
        r = put_text(out, size, c.s->nvml_version);
    return call_end(&c, r);
}

static nvmlReturn_t cuda_version(const char *name, int *out) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "%s", "");
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = c.s->cuda_version;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) {
    return cuda_version(__func__, out);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    return cuda_version(__func__, out);
}

EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *out, unsigned int size) {
    OPEN(READ, "%s", "");
    (void)size;
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(out->version == NVML_VERSION_WORD(*out, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (r == NVML_SUCCESS)
        snprintf(out->branch, sizeof out->branch, "r%d_00", atoi(c.s->driver_version));
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *out, unsigned int size) {
    OPEN(READ, "\"pid\": %u", pid);
    NEEDS(out && size, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        r = NVML_ERROR_NOT_FOUND;
        for (int i = 0; i < sim->ngpus; i++)
            for (int k = 0; k < MAX_HOLDERS; k++) {
                const holder_t *h = &c.s->gpus[i].holders[k];
                if (r == NVML_ERROR_NOT_FOUND && h->used && h->kind != HOLD_LEAK && h->pid == pid)
                    r = put_text(out, size, h->name);
            }
    }
    return call_end(&c, r);
}

static nvmlReturn_t device_count(const char *name, unsigned int *out) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "%s", "");
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = (unsigned int)gpu_count(&c);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *out) {
    return device_count(__func__, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *out) {
    return device_count(__func__, out);
}

/* A lost GPU answers GPU_IS_LOST to the very question for its handle (partitioning.md, section 3). */
static nvmlReturn_t give_handle(const call_t *c, int n, nvmlDevice_t *out) {
    if (n == -1)
        return NVML_ERROR_NOT_FOUND;
    if (c->s->gpus[n].lost)
        return NVML_ERROR_GPU_IS_LOST;
    *out = device_handle(n);
    return NVML_SUCCESS;
}

static nvmlReturn_t handle_by_index(const char *name, unsigned int index, nvmlDevice_t *out) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "\"index\": %u", index);
    NEEDS(out && index < (unsigned int)gpu_count(&c), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = give_handle(&c, gpu_at_index(&c, index), out);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *out) {
    return handle_by_index(__func__, index, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out) {
    return handle_by_index(__func__, index, out);
}

static int gpu_by_uuid(const call_t *c, const char *uuid) {
    for (int i = 0; i < sim->ngpus; i++)
        if (is_counted(c, i) && strcasecmp(sim->gpus[i].uuid, uuid) == 0)
            return i;
    return -1;
}

/* Both forms: "MIG-<uuid>" since R470, "MIG-GPU-<uuid>/<gi>/<ci>" before. */
static nvmlReturn_t mig_by_uuid(const call_t *c, const char *uuid, nvmlDevice_t *out) {
    char gpu[UUID_LEN];
    int gi, ci;
    bool old_form = sscanf(uuid, "MIG-%47[^/]/%d/%d", gpu, &gi, &ci) == 3;
    int only = old_form ? gpu_by_uuid(c, gpu) : -1;
    for (int i = 0; i < sim->ngpus; i++) {
        const gpu_t *g = &c->s->gpus[i];
        if (!is_counted(c, i) || (old_form && i != only))
            continue;
        for (int k = 0; k < MAX_CIS; k++) {
            const ci_t *x = &g->cis[k];
            if (!x->used || !sees_ci(c, i, x) ||
                !(old_form ? x->gi == gi && x->id == ci : strcasecmp(x->uuid, uuid) == 0))
                continue;
            if (g->lost)
                return NVML_ERROR_GPU_IS_LOST;
            *out = mig_handle(i, x);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_uuid(const call_t *c, const char *uuid, nvmlDevice_t *out) {
    if (strncasecmp(uuid, "MIG-", 4) == 0)
        return mig_by_uuid(c, uuid, out);
    if (strncasecmp(uuid, "GPU-", 4) != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_handle(c, gpu_by_uuid(c, uuid), out);
}

static void logged_text(const char *in, char *out, size_t size) {
    json_escape(in ? in : "", out, size);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    char safe[128];
    logged_text(uuid, safe, sizeof safe);
    OPEN(READ, "\"uuid\": \"%s\"", safe);
    NEEDS(uuid && out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = by_uuid(&c, uuid, out);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *out) {
    char text[96] = "", safe[128];
    if (uuid && uuid->type == 1) {
        memcpy(text, uuid->value.str, sizeof uuid->value.str);
    } else if (uuid && uuid->type == 2) {
        const unsigned char *b = uuid->value.bytes;
        snprintf(text, sizeof text,
                 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
                 b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    }
    logged_text(text, safe, sizeof safe);
    OPEN(READ, "\"uuid\": \"%s\"", safe);
    NEEDS(uuid && out, NVML_ERROR_INVALID_ARGUMENT);
    /* pynvml 13.615 leaves the version word at 0 here, so 0 has to pass as well as version 1. */
    NEEDS(uuid->version == 0 || uuid->version == NVML_VERSION_WORD(*uuid, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEEDS(text[0], NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = by_uuid(&c, text, out);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out) {
    char safe[128];
    logged_text(serial, safe, sizeof safe);
    OPEN(READ, "\"serial\": \"%s\"", safe);
    NEEDS(serial && out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        int found = -1;
        for (int i = 0; i < sim->ngpus; i++)
            if (is_counted(&c, i) && strcmp(sim->gpus[i].serial, serial) == 0)
                found = i;
        r = give_handle(&c, found, out);
    }
    return call_end(&c, r);
}

/* Accepts "00000000:07:00.0", "0000:07:00.0" and "07:00.0"; -2 when the text is no address at all. */
static int gpu_by_pci(const char *text) {
    unsigned int domain = 0, bus, device, function = 0;
    int used = 0;
    if (sscanf(text, "%x:%x:%x.%x%n", &domain, &bus, &device, &function, &used) < 4 || text[used]) {
        domain = 0;
        used = 0;
        if (sscanf(text, "%x:%x.%x%n", &bus, &device, &function, &used) < 3 || text[used])
            return -2;
    }
    for (int i = 0; i < sim->ngpus; i++) {
        const gpu_static_t *g = &sim->gpus[i];
        if (g->domain == domain && g->bus == bus && g->device == device && function == 0)
            return i;
    }
    return -1;
}

static nvmlReturn_t handle_by_pci(const char *name, const char *bus_id, nvmlDevice_t *out) {
    char safe[128];
    call_t c;
    logged_text(bus_id, safe, sizeof safe);
    nvmlReturn_t r = call_begin(&c, name, READ, "\"pci\": \"%s\"", safe);
    NEEDS(bus_id && out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        int n = gpu_by_pci(bus_id);
        if (n == -2)
            r = NVML_ERROR_INVALID_ARGUMENT;
        else
            r = give_handle(&c, n >= 0 && !is_counted(&c, n) ? -1 : n, out);
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *out) {
    return handle_by_pci(__func__, bus_id, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *out) {
    return handle_by_pci(__func__, bus_id, out);
}

EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *out) {
    OPEN(READ, "%s", "");
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = 0;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int *out) {
    OPEN(READ, "%s", "");
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = 0;
    return call_end(&c, r);
}

/* ---- drain, remove, rescan: these name a GPU by its PCI address, also when it has no handle ---- */

static nvmlReturn_t pci_target(const call_t *c, const nvmlPciInfo_t *pci, bool want_removed, int *out) {
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < sim->ngpus; i++) {
        const gpu_static_t *g = &sim->gpus[i];
        if (g->domain == pci->domain && g->bus == pci->bus && g->device == pci->device &&
            (want_removed || !c->s->gpus[i].removed)) {
            *out = i;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

static void pci_text(const nvmlPciInfo_t *pci, char *out, size_t size) {
    snprintf(out, size, "%04x:%02x:%02x.0", pci ? pci->domain : 0, pci ? pci->bus : 0, pci ? pci->device : 0);
}

EXPORT nvmlReturn_t nvmlDeviceModifyDrainState(nvmlPciInfo_t *pci, unsigned int state) {
    char where[24];
    int n = -1;
    pci_text(pci, where, sizeof where);
    OPEN(WRITE, "\"pci\": \"%s\", \"state\": %u", where, state);
    if (r == NVML_SUCCESS)
        r = pci_target(&c, pci, false, &n);
    NEEDS(state <= 1, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = may_write(&c);
    /* A GPU is only drained when nobody uses it, otherwise "in use" (the same word that nvidia-smi drain prints). */
    NEEDS(state == 0 || !has_any_holder(&c.s->gpus[n]), NVML_ERROR_IN_USE);
    if (r == NVML_SUCCESS)
        set_int(&c, &c.s->gpus[n].draining, (int)state);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceQueryDrainState(nvmlPciInfo_t *pci, unsigned int *out) {
    char where[24];
    int n = -1;
    pci_text(pci, where, sizeof where);
    OPEN(READ, "\"pci\": \"%s\"", where);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        r = pci_target(&c, pci, false, &n);
    if (r == NVML_SUCCESS)
        *out = (unsigned int)c.s->gpus[n].draining;
    return call_end(&c, r);
}

static nvmlReturn_t remove_gpu(const char *name, nvmlPciInfo_t *pci) {
    char where[24];
    int n = -1;
    call_t c;
    pci_text(pci, where, sizeof where);
    nvmlReturn_t r = call_begin(&c, name, WRITE, "\"pci\": \"%s\"", where);
    if (r == NVML_SUCCESS)
        r = pci_target(&c, pci, false, &n);
    if (r == NVML_SUCCESS)
        r = may_write(&c);
    NEEDS(!has_any_holder(&c.s->gpus[n]), NVML_ERROR_IN_USE);
    NEEDS(c.s->gpus[n].draining, NVML_ERROR_IN_USE);
    if (r == NVML_SUCCESS) {
        gpu_unload(&c.s->gpus[n], &sim->boards[sim->gpus[n].board]);
        c.s->gpus[n].removed = 1;
        c.changed = true;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceRemoveGpu(nvmlPciInfo_t *pci) {
    return remove_gpu(__func__, pci);
}

EXPORT nvmlReturn_t nvmlDeviceRemoveGpu_v2(nvmlPciInfo_t *pci, unsigned int gpu_state, unsigned int link_state) {
    (void)gpu_state;
    (void)link_state;
    return remove_gpu(__func__, pci);
}

EXPORT nvmlReturn_t nvmlDeviceDiscoverGpus(nvmlPciInfo_t *pci) {
    char where[24];
    int n = -1;
    pci_text(pci, where, sizeof where);
    OPEN(WRITE, "\"pci\": \"%s\"", where);
    if (r == NVML_SUCCESS)
        r = may_write(&c);
    if (r == NVML_SUCCESS)
        r = pci_target(&c, pci, true, &n);
    if (r == NVML_SUCCESS)
        set_int(&c, &c.s->gpus[n].removed, 0);
    return call_end(&c, r);
}
