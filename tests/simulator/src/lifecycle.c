/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* What a driver load, a reset and a reboot do to a GPU. */
#include "sim.h"

#include <string.h>

/* State of a GPU as it leaves the shop: nothing persistent has been changed yet. */
void gpu_power_on(gpu_t *g, const board_t *b, int minor) {
    memset(g, 0, sizeof *g);
    g->minor = minor;
    g->reset_supported = 1;
    g->temperature = b->temp_idle;
    g->memory_temperature = b->temp_idle;
    g->power_mw = b->power_idle_mw;
    g->power_limit_mw = b->power_default_mw;
    g->ecc_current = g->ecc_pending = b->ecc_supported;
    g->clock_sm_now = g->clock_mem_now = -1;
    g->sched_policy = 1;
    g->clock_reasons = 1; /* GPU idle */
}

static void drop_clients(gpu_t *g) {
    memset(g->holders, 0, sizeof g->holders);
    memset(g->vgpus, 0, sizeof g->vgpus);
}

/* The driver goes: what lives only while it is loaded is lost. MIG mode is in the InfoROM on boards that need a reset
 * for it and only in the driver on the others; instances survive nowhere (hosts.md, section 5). */
void gpu_unload(gpu_t *g, const board_t *b) {
    mig_clear(g, b);
    drop_clients(g);
    if (b->resetless)
        g->mig_pending = 0;
    g->mig_current = g->mig_pending;
    g->power_limit_mw = b->power_default_mw;
    g->persistence = 0;
    g->compute_mode = 0;
    g->accounting = 0;
    g->timeslice = 0;
    memset(g->lock_sm, 0, sizeof g->lock_sm);
    memset(g->lock_mem, 0, sizeof g->lock_mem);
    g->draining = 0;
    g->removed = 0;
    g->heterogeneous = 0;
    g->sched_policy = 1;
    g->sched_arr = g->sched_avg = g->sched_time = 0;
    g->ecc_current = g->ecc_pending;
    g->ecc[0][0] = g->ecc[1][0] = 0;
    g->util_gpu = g->util_memory = g->util_encoder = g->util_decoder = 0;
    g->power_mw = b->power_idle_mw;
    g->energy_mj = 0;
}

/* A reset of one GPU. IN_USE: somebody uses it; NOT_SUPPORTED: the platform (a VM, say) does not let it; GPU_IS_LOST:
 * what has fallen off the bus comes back with a reboot only. */
nvmlReturn_t gpu_reset(gpu_t *g, const board_t *b) {
    if (g->lost || g->removed)
        return NVML_ERROR_GPU_IS_LOST;
    if (!g->reset_supported)
        return NVML_ERROR_NOT_SUPPORTED;
    if (has_any_holder(g))
        return NVML_ERROR_IN_USE;
    for (int i = 0; i < MAX_VGPUS; i++)
        if (g->vgpus[i].used)
            return NVML_ERROR_IN_USE;
    mig_clear(g, b);
    g->mig_current = g->mig_pending;
    if (g->mig_current)
        g->accounting = 0;
    g->ecc_current = g->ecc_pending;
    g->ecc[0][0] = g->ecc[1][0] = 0;
    g->remapped[2] = 0;
    g->heterogeneous = 0;
    return NVML_SUCCESS;
}

void host_reboot(slot_t *s) {
    s->boots++;
    for (int i = 0; i < sim->ngpus; i++) {
        gpu_unload(&s->gpus[i], &sim->boards[sim->gpus[i].board]);
        s->gpus[i].lost = 0;
        s->gpus[i].remapped[2] = 0;
    }
}

void push_event(slot_t *s, int gpu, int gi, int ci, unsigned long long type, unsigned long long data) {
    s->event_seq++;
    s->events[s->event_seq % MAX_EVENTS] =
        (event_t){.seq = s->event_seq, .gpu = gpu, .gi = gi, .ci = ci, .type = type, .data = data};
}
