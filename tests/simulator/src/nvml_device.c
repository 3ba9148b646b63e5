/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* Identity, memory and processes of a device. */
#include "api.h"

#include <stdio.h>

#define MIB (1024ull * 1024ull)

static void pci_bus_id(const gpu_static_t *g, char *out, size_t size) {
    snprintf(out, size, "%08X:%02X:%02X.0", g->domain, g->bus, g->device);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *out, unsigned int size) {
    char name[192], profile[64];
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    if (r == NVML_SUCCESS) {
        snprintf(name, sizeof name, "%s", d.b->name);
        if (d.ci) {
            mig_full_name(&d, d.ci, profile, sizeof profile);
            snprintf(name, sizeof name, "%s MIG %s", d.b->name, profile);
        }
        r = put_text(out, size, name);
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *out, unsigned int size) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    if (r == NVML_SUCCESS)
        r = put_text(out, size, d.ci ? d.ci->uuid : d.stat->uuid);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *out, unsigned int size) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    if (r == NVML_SUCCESS)
        r = put_text(out, size, d.stat->serial);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t handle, char *out, unsigned int size) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(d.b->vbios[0], NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        r = put_text(out, size, d.b->vbios);
    return call_end(&c, r);
}

static nvmlReturn_t pci_info(const char *name, nvmlDevice_t handle, nvmlPciInfo_t *out) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE); /* a MIG device answers with its parent's address */
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        memset(out, 0, sizeof *out);
        out->domain = d.stat->domain;
        out->bus = d.stat->bus;
        out->device = d.stat->device;
        out->pciDeviceId = d.b->pci_device_id;
        out->pciSubSystemId = d.b->pci_subsystem_id;
        pci_bus_id(d.stat, out->busId, sizeof out->busId);
        snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", d.stat->domain & 0xffff, d.stat->bus & 0xff,
                 d.stat->device & 0xff);
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t handle, nvmlPciInfo_t *out) {
    return pci_info(__func__, handle, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_t *out) {
    return pci_info(__func__, handle, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *out) {
    return pci_info(__func__, handle, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t handle, nvmlPciInfoExt_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(out->version == NVML_VERSION_WORD(*out, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (r == NVML_SUCCESS) {
        *out = (nvmlPciInfoExt_t){out->version, d.stat->domain, d.stat->bus, d.stat->device, d.b->pci_device_id,
                                  d.b->pci_subsystem_id, 0x03, 0x02, ""}; /* class "3D controller" */
        pci_bus_id(d.stat, out->busId, sizeof out->busId);
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = (unsigned int)(d.ci ? visible_index(&c, &d, d.ci) : index_of_gpu(&c, d.n));
    return call_end(&c, r);
}

NUMBER(nvmlDeviceGetMinorNumber, WHOLE_GPU_READING, true, d.g->minor)
NUMBER(nvmlDeviceGetArchitecture, ANY_DEVICE, true, d.b->arch)
NUMBER(nvmlDeviceGetBrand, ANY_DEVICE, true, d.b->brand)
NUMBER(nvmlDeviceGetBoardId, WHOLE_GPU_READING, true, (d.stat->domain << 16) | (d.stat->bus << 8) | d.stat->device)
NUMBER(nvmlDeviceGetMultiGpuBoard, WHOLE_GPU_READING, true, 0)
NUMBER(nvmlDeviceGetNumGpuCores, WHOLE_GPU_READING, d.b->cores_per_sm > 0, d.b->cores_per_sm * d.b->sm)
NUMBER(nvmlDeviceGetMemoryBusWidth, WHOLE_GPU_READING, d.b->bus_width > 0, d.b->bus_width)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, WHOLE_GPU_READING, d.b->pcie_gen > 0, d.b->pcie_gen)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, WHOLE_GPU_READING, d.b->pcie_gen > 0, d.b->pcie_gen)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, WHOLE_GPU_READING, d.b->pcie_gen > 0, d.b->pcie_gen)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, WHOLE_GPU_READING, d.b->pcie_width > 0, d.b->pcie_width)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, WHOLE_GPU_READING, d.b->pcie_width > 0, d.b->pcie_width)
NUMBER(nvmlDeviceGetDisplayActive, WHOLE_GPU_READING, true, 0)
NUMBER(nvmlDeviceGetDisplayMode, WHOLE_GPU_READING, true, 0)

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(major && minor, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        *major = d.b->cc_major;
        *minor = d.b->cc_minor;
    }
    return call_end(&c, r);
}

/* Of what GPUs can do with each other only NVLink is simulated, of whatever else nothing is known. A GPU in MIG mode
 * reaches no other (MIG User Guide: no GPU to GPU P2P, neither PCIe nor NVLink); that the status says so is assumed. */
EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t handle, nvmlDevice_t peer, unsigned int index, unsigned int *out) {
    OPEN(READ, "%s, \"peer\": {%s}, \"index\": %u", name_of(handle), name_of(peer), index);
    DEVICE(handle, WHOLE_GPU);
    device_t other = {0};
    if (r == NVML_SUCCESS)
        r = find_device(&c, peer, WHOLE_GPU, &other);
    NEEDS(out && index < NVML_P2P_CAPS_INDEX_UNKNOWN, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS && index != NVML_P2P_CAPS_INDEX_NVLINK)
        *out = NVML_P2P_STATUS_UNKNOWN;
    else if (r == NVML_SUCCESS) {
        bool joined = d.g->nvlink && d.g->nvlink == other.g->nvlink && !d.g->mig_current && !other.g->mig_current;
        *out = joined ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    }
    return call_end(&c, r);
}

/* ---- memory ---- */

static bool of_device(const device_t *d, const holder_t *h) {
    return h->used && (!d->ci || (h->gi == d->ci->gi && (h->ci == d->ci->id || h->ci == -1)));
}

static unsigned long long total_mib(const device_t *d) {
    return (unsigned long long)(d->ci ? gi_profile(d)->memory_mib : d->b->memory_mib);
}

static unsigned long long held_mib(const device_t *d) {
    long long sum = 0;
    for (int i = 0; i < MAX_HOLDERS; i++)
        if (of_device(d, &d->g->holders[i]))
            sum += d->g->holders[i].memory_mib;
    unsigned long long total = total_mib(d);
    return (unsigned long long)sum < total ? (unsigned long long)sum : total;
}

/* What the driver keeps for itself is only known for the whole board; a slice shows none. */
static unsigned long long reserved_mib(const device_t *d) {
    unsigned long long reserved = d->ci ? 0 : (unsigned long long)d->b->reserved_mib;
    unsigned long long room = total_mib(d) - held_mib(d);
    return reserved < room ? reserved : room;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        /* Version 1 knows no `reserved`: it counts as used. */
        unsigned long long used = held_mib(&d) + reserved_mib(&d);
        *out = (nvmlMemory_t){total_mib(&d) * MIB, (total_mib(&d) - used) * MIB, used * MIB};
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(out->version == NVML_VERSION_WORD(*out, 2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (r == NVML_SUCCESS) {
        unsigned long long used = held_mib(&d), reserved = reserved_mib(&d);
        *out = (nvmlMemory_v2_t){out->version, total_mib(&d) * MIB, reserved * MIB,
                                 (total_mib(&d) - used - reserved) * MIB, used * MIB};
    }
    return call_end(&c, r);
}

/* A slice sees its share of the window (nvidia-smi prints BAR1 for MIG devices, and nvitop relies on it). */
EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.b->bar1_mib > 0, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        unsigned long long total = (unsigned long long)d.b->bar1_mib * MIB, used = d.ci ? 0 : MIB;
        if (d.ci)
            total = total * (unsigned long long)gi_profile(&d)->size / (unsigned long long)d.b->memory_slices;
        *out = (nvmlBAR1Memory_t){total, total - used, used};
    }
    return call_end(&c, r);
}

/* ---- processes ---- */

static unsigned int id_or_none(int id) {
    return id < 0 ? NVML_NO_ID : (unsigned int)id;
}

static nvmlReturn_t processes(const char *name, nvmlDevice_t handle, int kind, unsigned int *count,
                              nvmlProcessInfo_t *out) {
    call_t c;
    nvmlReturn_t r = call_begin(&c, name, READ, "%s, \"room\": %u", name_of(handle), count ? *count : 0);
    DEVICE(handle, ANY_DEVICE);
    NEEDS(count && (*count == 0 || out), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        unsigned int room = *count, n = 0;
        for (int i = 0; i < MAX_HOLDERS; i++) {
            const holder_t *h = &d.g->holders[i];
            if (!of_device(&d, h) || h->kind != kind)
                continue;
            if (n < room)
                out[n] = (nvmlProcessInfo_t){h->pid, (unsigned long long)h->memory_mib * MIB, id_or_none(h->gi),
                                             id_or_none(h->ci)};
            n++;
        }
        *count = n;
        r = n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    return call_end(&c, r);
}

#define PROCESSES(function, kind) \
    EXPORT nvmlReturn_t function(nvmlDevice_t handle, unsigned int *count, nvmlProcessInfo_t *out) { \
        return processes(__func__, handle, kind, count, out); \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, HOLD_COMPUTE)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, HOLD_COMPUTE)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, HOLD_GRAPHICS)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, HOLD_GRAPHICS)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, HOLD_MPS)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, HOLD_MPS)

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_t *list) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, ANY_DEVICE);
    NEEDS(list && list->mode <= HOLD_MPS, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(list->version == NVML_VERSION_WORD(*list, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (r == NVML_SUCCESS) {
        unsigned int room = list->procArray ? list->numProcArrayEntries : 0, n = 0;
        for (int i = 0; i < MAX_HOLDERS; i++) {
            const holder_t *h = &d.g->holders[i];
            if (!of_device(&d, h) || h->kind != (int)list->mode)
                continue;
            if (n < room)
                list->procArray[n] = (nvmlProcessDetail_t){h->pid, (unsigned long long)h->memory_mib * MIB,
                                                           id_or_none(h->gi), id_or_none(h->ci), 0};
            n++;
        }
        list->numProcArrayEntries = n;
        r = n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    return call_end(&c, r);
}

/* ---- accounting: forced off under MIG ---- */

EXPORT nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t handle, unsigned int *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = (unsigned int)d.g->accounting;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t handle, unsigned int mode) {
    OPEN(WRITE, "%s, \"mode\": %u", name_of(handle), mode);
    DEVICE_FOR_ROOT(handle);
    NEEDS(mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(!mode || !d.g->mig_current, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        set_int(&c, &d.g->accounting, (int)mode);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t handle, unsigned int *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = MAX_HOLDERS;
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t handle, unsigned int *count, unsigned int *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(count, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.g->accounting, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        unsigned int room = out ? *count : 0, n = 0;
        for (int i = 0; i < MAX_HOLDERS; i++)
            if (d.g->holders[i].used && d.g->holders[i].kind == HOLD_COMPUTE) {
                if (n < room)
                    out[n] = d.g->holders[i].pid;
                n++;
            }
        *count = n;
        r = n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t handle, unsigned int pid, nvmlAccountingStats_t *out) {
    OPEN(READ, "%s, \"pid\": %u", name_of(handle), pid);
    DEVICE(handle, WHOLE_GPU_READING);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(d.g->accounting, NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS) {
        r = NVML_ERROR_NOT_FOUND;
        for (int i = 0; i < MAX_HOLDERS; i++) {
            const holder_t *h = &d.g->holders[i];
            if (!h->used || h->kind != HOLD_COMPUTE || h->pid != pid)
                continue;
            *out = (nvmlAccountingStats_t){.gpuUtilization = (unsigned int)d.g->util_gpu,
                                           .memoryUtilization = (unsigned int)d.g->util_memory,
                                           .maxMemoryUsage = (unsigned long long)h->memory_mib * MIB,
                                           .isRunning = 1};
            r = NVML_SUCCESS;
        }
    }
    return call_end(&c, r);
}
