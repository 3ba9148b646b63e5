/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* The rules of MIG. Facts: shared geometry tables and NVML notes, quoted in tests/simulator/README.md. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const profile_t *gi_profile(const device_t *d) {
    return &d->b->profiles[d->gi->profile];
}

const ci_profile_t *ci_profile(const device_t *d, const ci_t *ci) {
    return &gi_profile(d)->cis[ci->profile];
}

int profile_by_query(const board_t *b, unsigned int query) {
    for (int i = 0; i < b->nprofiles; i++)
        if ((unsigned int)b->profiles[i].query == query)
            return i;
    return -1;
}

int profile_by_id(const board_t *b, unsigned int id) {
    for (int i = 0; i < b->nprofiles; i++)
        if ((unsigned int)b->profiles[i].id == id)
            return i;
    return -1;
}

/* Drivers up to 535 answer questions about profiles only while MIG is on (partitioning.md, section 3). */
bool mig_answers(const call_t *c, const device_t *d) {
    return d->b->mig && (d->g->mig_current || atoi(c->s->driver_version) > 535);
}

gi_t *gi_by_id(gpu_t *g, int id) {
    for (int i = 0; i < MAX_GIS; i++)
        if (g->gis[i].used && g->gis[i].id == id)
            return &g->gis[i];
    return NULL;
}

ci_t *ci_by_id(gpu_t *g, int gi, int id) {
    for (int i = 0; i < MAX_CIS; i++)
        if (g->cis[i].used && g->cis[i].gi == gi && g->cis[i].id == id)
            return &g->cis[i];
    return NULL;
}

int gi_members(const gpu_t *g, const gi_t *gi) {
    int n = 0;
    for (int i = 0; i < MAX_CIS; i++)
        n += g->cis[i].used && g->cis[i].gi == gi->id;
    return n;
}

bool has_holder(const gpu_t *g, int gi, int ci) {
    for (int i = 0; i < MAX_HOLDERS; i++)
        if (g->holders[i].used && g->holders[i].gi == gi && g->holders[i].ci == ci)
            return true;
    return false;
}

bool has_any_holder(const gpu_t *g) {
    for (int i = 0; i < MAX_HOLDERS; i++)
        if (g->holders[i].used)
            return true;
    return false;
}

static bool has_instances(const gpu_t *g) {
    for (int i = 0; i < MAX_GIS; i++)
        if (g->gis[i].used)
            return true;
    return false;
}

/* ---- mode ---- */

static void mode_took_effect(gpu_t *g) {
    /* Accounting is forced off under MIG; the driver comes back with the default compute mode. */
    if (g->mig_current)
        g->accounting = 0;
    g->compute_mode = 0;
}

nvmlReturn_t mig_set_mode(const device_t *d, unsigned int mode, nvmlReturn_t *activation, bool *changed) {
    gpu_t *g = d->g;
    int want = (int)mode;
    if (!d->b->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    *activation = NVML_SUCCESS;
    if (g->mig_current == want) {
        *changed = g->mig_pending != want;
        g->mig_pending = want;
        return NVML_SUCCESS;
    }
    /* The driver cannot unbind a device that has clients or instances: the mode is noted and stays pending. */
    bool busy = has_any_holder(g) || has_instances(g);
    if (d->b->resetless && !busy) {
        g->mig_current = g->mig_pending = want;
        mode_took_effect(g);
        *changed = true;
        return NVML_SUCCESS;
    }
    *activation = busy ? NVML_ERROR_IN_USE : NVML_ERROR_RESET_REQUIRED;
    *changed = g->mig_pending != want;
    g->mig_pending = want;
    return NVML_SUCCESS;
}

/* ---- places ---- */

static bool taken(const device_t *d, int start, int size) {
    for (int i = 0; i < MAX_GIS; i++) {
        const gi_t *gi = &d->g->gis[i];
        if (gi->used && start < gi->start + d->b->profiles[gi->profile].size && gi->start < start + size)
            return true;
    }
    return false;
}

static int used_slices(const device_t *d) {
    int n = 0;
    for (int i = 0; i < MAX_GIS; i++)
        if (d->g->gis[i].used)
            n += d->b->profiles[d->g->gis[i].profile].slices;
    return n;
}

static int count_of(const device_t *d, int profile) {
    int n = 0;
    for (int i = 0; i < MAX_GIS; i++)
        n += d->g->gis[i].used && d->g->gis[i].profile == profile;
    return n;
}

static int smaller(int a, int b) {
    return a < b ? a : b;
}

/* How many more instances of one profile fit: its own maximum, the compute slices left, and free places that do not
 * overlap each other. Places of one size are intervals of one length, so taking the earliest free one is optimal. */
unsigned int gi_capacity(const device_t *d, int profile) {
    const profile_t *p = &d->b->profiles[profile];
    bool start_free[MAX_PLACES] = {false};
    for (int i = 0; i < p->nplaces; i++)
        if (p->starts[i] < MAX_PLACES)
            start_free[p->starts[i]] = !taken(d, p->starts[i], p->size);
    int room = 0;
    for (int s = 0; s < MAX_PLACES;) {
        room += start_free[s];
        s += start_free[s] ? p->size : 1;
    }
    int by_count = p->max - count_of(d, profile);
    int by_slices = (d->b->compute_slices - used_slices(d)) / p->slices;
    int n = smaller(room, smaller(by_count, by_slices));
    return n > 0 ? (unsigned int)n : 0;
}

static int id_at(const profile_t *p, int start) {
    for (int i = 0; i < p->nplaces; i++)
        if (p->starts[i] == start)
            return p->gi_ids[i];
    return -1;
}

static int choose_start(const call_t *c, const device_t *d, const profile_t *p) {
    int best = -1;
    for (int i = 0; i < p->nplaces; i++) {
        int start = c->s->order_mode == ORDER_BOARD ? p->order[i] : p->starts[i];
        if (taken(d, start, p->size) || gi_by_id(d->g, id_at(p, start)))
            continue;
        if (c->s->order_mode == ORDER_BOARD)
            return start;
        bool better = c->s->order_mode == ORDER_ASCENDING ? start < best : start > best;
        if (best == -1 || better)
            best = start;
    }
    return best;
}

nvmlReturn_t mig_create_gi(const call_t *c, const device_t *d, unsigned int id, const nvmlPlacement_t *place,
                           gi_t **out) {
    if (!d->b->mig || !d->g->mig_current)
        return NVML_ERROR_NOT_SUPPORTED;
    int profile = profile_by_id(d->b, id);
    if (profile == -1)
        return NVML_ERROR_INVALID_ARGUMENT;
    const profile_t *p = &d->b->profiles[profile];
    if (place && ((int)place->size != p->size || place->start >= MAX_PLACES || id_at(p, (int)place->start) == -1))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (has_holder(d->g, -1, -1))
        return NVML_ERROR_IN_USE;
    if (count_of(d, profile) >= p->max || used_slices(d) + p->slices > d->b->compute_slices)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    int start = place ? (int)place->start : choose_start(c, d, p);
    if (start == -1 || taken(d, start, p->size) || gi_by_id(d->g, id_at(p, start)))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (int i = 0; i < MAX_GIS; i++) {
        gi_t *gi = &d->g->gis[i];
        if (gi->used)
            continue;
        *gi = (gi_t){.used = 1, .id = id_at(p, start), .profile = profile, .start = start, .birth = ++d->g->births,
                     .sched_policy = 1};
        *out = gi;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

/* ---- compute instances ---- */

typedef struct {
    int slices, sm, count;
    uint64_t places;
} ci_use_t;

static uint64_t bits(int start, int size) {
    return size >= 64 ? ~0ull : ((1ull << size) - 1) << start;
}

static ci_use_t ci_use(const device_t *d, const ci_profile_t *p) {
    ci_use_t use = {0};
    for (int i = 0; i < MAX_CIS; i++) {
        const ci_t *ci = &d->g->cis[i];
        if (!ci->used || ci->gi != d->gi->id)
            continue;
        const ci_profile_t *has = ci_profile(d, ci);
        use.slices += has->slices;
        use.sm += has->sm;
        use.count += has == p;
        use.places |= bits(ci->start, has->slices);
    }
    return use;
}

static int free_ci_start(const ci_profile_t *p, uint64_t places) {
    for (int i = 0; i < p->nstarts; i++)
        if (!(places & bits(p->starts[i], p->slices)))
            return p->starts[i];
    return -1;
}

unsigned int ci_capacity(const device_t *d, const ci_profile_t *p) {
    ci_use_t use = ci_use(d, p);
    const profile_t *gi = gi_profile(d);
    unsigned int n = 0;
    for (; use.count < p->max && use.sm + p->sm <= gi->sm; n++) {
        int start = free_ci_start(p, use.places);
        if (start == -1)
            break;
        use.places |= bits(start, p->slices);
        use.sm += p->sm;
        use.count++;
    }
    return n;
}

static int lowest_ci_id(gpu_t *g, const gi_t *gi) {
    int id = 0;
    while (ci_by_id(g, gi->id, id))
        id++;
    return id;
}

/* MIG devices keep their index; a new one takes the lowest index that is free, so a destroyed one leaves a gap. */
static int lowest_mig_index(const gpu_t *g) {
    uint64_t seen = 0;
    for (int i = 0; i < MAX_CIS; i++)
        if (g->cis[i].used)
            seen |= 1ull << g->cis[i].index;
    int index = 0;
    while (seen & (1ull << index))
        index++;
    return index;
}

static unsigned long long slice_key(const device_t *d, const ci_t *ci) {
    char text[160];
    snprintf(text, sizeof text, "%s/%s@%d/%d", d->stat->uuid, gi_profile(d)->name, d->gi->start, ci->id);
    return hash_text(text, 0);
}

static bool is_borne(const gpu_t *g, const ci_t *ci) {
    for (int i = 0; i < MAX_CIS; i++)
        if (g->cis[i].used && &g->cis[i] != ci && strcmp(g->cis[i].uuid, ci->uuid) == 0)
            return true;
    return false;
}

/* Whether the slice with this key is there at this moment. */
static bool lives(const device_t *d, unsigned long long key) {
    for (int i = 0; i < MAX_CIS; i++) {
        ci_t *ci = &d->g->cis[i];
        device_t other = *d;
        if (ci->used && (other.gi = gi_by_id(d->g, ci->gi)) && slice_key(&other, ci) == key)
            return true;
    }
    return false;
}

/* What another slice bore last: a slice that is not made again yet comes first, so that in the end nobody is left with
 * its own, and of several the one that went last: what slices bore long ago swaps nothing. */
static bool take_old_uuid(const device_t *d, unsigned long long key, ci_t *ci) {
    gpu_t *g = d->g;
    int found = -1;
    bool waits = false;
    for (int i = (int)g->nold - 1; i >= 0 && !waits; i--) {
        copy_text(ci->uuid, sizeof ci->uuid, g->old[i].uuid);
        if (g->old[i].key == key || is_borne(g, ci))
            continue;
        waits = !lives(d, g->old[i].key);
        if (found == -1 || waits)
            found = i;
    }
    if (found == -1)
        return false;
    copy_text(ci->uuid, sizeof ci->uuid, g->old[found].uuid);
    memmove(&g->old[found], &g->old[found + 1], (g->nold - found - 1) * sizeof g->old[0]);
    g->nold--;
    return true;
}

/* Whether a slice that is made again bears its old UUID is contested (partitioning.md, section 6): a test chooses.
 * `swap` hands out what a neighbour had, the worst case for whoever stored a UUID. */
static void give_uuid(const call_t *c, const device_t *d, ci_t *ci) {
    unsigned long long key = slice_key(d, ci);
    if (c->s->uuid_mode == UUID_SWAP && take_old_uuid(d, key, ci))
        return;
    unsigned int salt = c->s->uuid_mode == UUID_SAME ? 0 : ci->birth;
    do {
        char seed[160], uuid[40];
        snprintf(seed, sizeof seed, "%s/%016llx/%u", d->stat->uuid, key, salt++);
        make_uuid(seed, uuid, sizeof uuid);
        snprintf(ci->uuid, sizeof ci->uuid, "MIG-%s", uuid);
    } while (is_borne(d->g, ci)); /* after a swap a neighbour may bear it */
}

nvmlReturn_t mig_create_ci(const call_t *c, const device_t *d, unsigned int id, const nvmlPlacement_t *place,
                           ci_t **out) {
    const profile_t *gi = gi_profile(d);
    int profile = -1;
    for (int i = 0; i < gi->ncis; i++)
        if ((unsigned int)gi->cis[i].id == id)
            profile = i;
    if (profile == -1)
        return NVML_ERROR_INVALID_ARGUMENT;
    const ci_profile_t *p = &gi->cis[profile];
    ci_use_t use = ci_use(d, p);
    int start = place ? -1 : free_ci_start(p, use.places);
    if (place) {
        for (int i = 0; i < p->nstarts; i++)
            if (p->starts[i] == (int)place->start && p->slices == (int)place->size)
                start = p->starts[i];
        if (start == -1)
            return NVML_ERROR_INVALID_ARGUMENT;
        if (use.places & bits(start, p->slices))
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    if (start == -1 || use.count >= p->max || use.sm + p->sm > gi->sm)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (int i = 0; i < MAX_CIS; i++) {
        ci_t *ci = &d->g->cis[i];
        if (ci->used)
            continue;
        int ci_id = lowest_ci_id(d->g, d->gi), index = lowest_mig_index(d->g);
        *ci = (ci_t){.used = 1, .gi = d->gi->id, .id = ci_id, .profile = profile, .start = start, .index = index,
                     .birth = ++d->g->births};
        give_uuid(c, d, ci);
        *out = ci;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

void mig_remove_ci(gpu_t *g, const board_t *b, ci_t *ci) {
    gi_t *gi = gi_by_id(g, ci->gi);
    /* Which GPU it is does not matter here: the key only has to be the one that give_uuid will compute. */
    device_t d = {.g = g, .b = b, .gi = gi, .stat = NULL};
    for (int i = 0; i < sim->ngpus; i++)
        if (&sim->slots[0].gpus[i] == g || &sim->slots[1].gpus[i] == g)
            d.stat = &sim->gpus[i];
    /* A UUID is here once, with the slice that bore it last; a slice is here once, with the UUID that it bore last. */
    unsigned long long key = slice_key(&d, ci);
    unsigned int kept = 0;
    for (unsigned int i = 0; i < g->nold; i++)
        if (g->old[i].key != key && strcmp(g->old[i].uuid, ci->uuid) != 0)
            g->old[kept++] = g->old[i];
    g->nold = kept;
    if (g->nold == MAX_CIS) {
        memmove(&g->old[0], &g->old[1], (MAX_CIS - 1) * sizeof g->old[0]);
        g->nold--;
    }
    g->old[g->nold].key = key;
    copy_text(g->old[g->nold].uuid, sizeof g->old[0].uuid, ci->uuid);
    g->nold++;
    ci->used = 0;
}

void mig_clear(gpu_t *g, const board_t *b) {
    for (int i = 0; i < MAX_CIS; i++)
        if (g->cis[i].used)
            mig_remove_ci(g, b, &g->cis[i]);
    for (int i = 0; i < MAX_GIS; i++)
        g->gis[i].used = 0;
}

/* "1g.10gb" for a compute instance that fills its GPU instance, "1c.3g.40gb" for a smaller one. */
void mig_full_name(const device_t *d, const ci_t *ci, char *out, size_t size) {
    const ci_profile_t *p = ci_profile(d, ci);
    if (p->slices == gi_profile(d)->slices)
        snprintf(out, size, "%s", gi_profile(d)->name);
    else
        snprintf(out, size, "%dc.%s", p->slices, gi_profile(d)->name);
}
