/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* The whole state as JSON, for `simctl show`. */
#include "control.h"

#include <stdio.h>
#include <string.h>

static const char *const holder_kinds[] = {"compute", "graphics", "mps", "leak"};

static void add_profile(text_t *t, const profile_t *p, bool first) {
    text_add(t,
             "%s{\"name\": \"%s\", \"query\": %d, \"id\": %d, \"slices\": %d, \"size\": %d, \"max\": %d, \"sm\": %d, "
             "\"memory_mib\": %lld, \"starts\": [",
             first ? "" : ", ", p->name, p->query, p->id, p->slices, p->size, p->max, p->sm, p->memory_mib);
    for (int i = 0; i < p->nplaces; i++)
        text_add(t, "%s%d", i ? ", " : "", p->starts[i]);
    text_add(t, "], \"ids\": {");
    for (int i = 0; i < p->nplaces; i++)
        text_add(t, "%s\"%d\": %d", i ? ", " : "", p->starts[i], p->gi_ids[i]);
    text_add(t, "}, \"order\": [");
    for (int i = 0; i < p->nplaces; i++)
        text_add(t, "%s%d", i ? ", " : "", p->order[i]);
    text_add(t, "]}");
}

static void add_boards(text_t *t) {
    text_add(t, "\"boards\": {");
    for (int i = 0; i < sim->nboards; i++) {
        const board_t *b = &sim->boards[i];
        text_add(t, "%s", i ? ", " : "");
        text_json(t, b->key);
        text_add(t, ": {\"name\": ");
        text_json(t, b->name);
        text_add(t,
                 ", \"mig\": %s, \"resetless\": %s, \"compute_slices\": %d, \"memory_slices\": %d, \"profiles\": [",
                 b->mig ? "true" : "false", b->resetless ? "true" : "false", b->compute_slices, b->memory_slices);
        for (int k = 0; k < b->nprofiles; k++)
            add_profile(t, &b->profiles[k], k == 0);
        text_add(t, "]}");
    }
    text_add(t, "}");
}

static void add_instance(text_t *t, const device_t *d) {
    const profile_t *p = gi_profile(d);
    text_add(t,
             "{\"gi\": %d, \"profile\": \"%s\", \"start\": %d, \"size\": %d, \"memory_mib\": %lld, \"cap\": %d, "
             "\"ci\": [",
             d->gi->id, p->name, d->gi->start, p->size, p->memory_mib, cap_of_gi(d->g->minor, d->gi->id));
    bool first = true;
    for (int i = 0; i < MAX_CIS; i++) {
        const ci_t *ci = &d->g->cis[i];
        if (!ci->used || ci->gi != d->gi->id)
            continue;
        char name[64];
        mig_full_name(d, ci, name, sizeof name);
        text_add(t,
                 "%s{\"id\": %d, \"profile\": \"%s\", \"start\": %d, \"size\": %d, \"index\": %d, \"uuid\": \"%s\", "
                 "\"cap\": %d}",
                 first ? "" : ", ", ci->id, name, ci->start, ci_profile(d, ci)->slices, ci->index, ci->uuid,
                 cap_of_ci(d->g->minor, ci->gi, ci->id));
        first = false;
    }
    text_add(t, "]}");
}

static void add_mig(text_t *t, device_t *d) {
    if (!d->b->mig) {
        text_add(t, "\"mig\": null");
        return;
    }
    text_add(t, "\"mig\": {\"current\": %s, \"pending\": %s, \"resetless\": %s, \"instances\": [",
             d->g->mig_current ? "true" : "false", d->g->mig_pending ? "true" : "false",
             d->b->resetless ? "true" : "false");
    bool first = true;
    for (int start = 0; start < MAX_PLACES; start++)
        for (int i = 0; i < MAX_GIS; i++)
            if (d->g->gis[i].used && d->g->gis[i].start == start) {
                text_add(t, "%s", first ? "" : ", ");
                first = false;
                d->gi = &d->g->gis[i];
                add_instance(t, d);
            }
    text_add(t, "]}");
}

static void add_holders(text_t *t, const gpu_t *g) {
    text_add(t, "\"holders\": [");
    bool first = true;
    for (int i = 0; i < MAX_HOLDERS; i++) {
        const holder_t *h = &g->holders[i];
        if (!h->used)
            continue;
        text_add(t, "%s{\"kind\": \"%s\", \"pid\": %u, \"name\": ", first ? "" : ", ", holder_kinds[h->kind], h->pid);
        text_json(t, h->name);
        text_add(t, ", \"memory_mib\": %lld", h->memory_mib);
        if (h->gi >= 0)
            text_add(t, ", \"gi\": %d", h->gi);
        if (h->ci >= 0)
            text_add(t, ", \"ci\": %d", h->ci);
        text_add(t, "}");
        first = false;
    }
    text_add(t, "]");
}

static void add_vgpus(text_t *t, const gpu_t *g, const board_t *b) {
    text_add(t, "\"vgpus\": [");
    bool first = true;
    for (int i = 0; i < MAX_VGPUS; i++) {
        if (!g->vgpus[i].used)
            continue;
        const char *name = "?";
        for (int k = 0; k < b->nvgpu_types; k++)
            if (b->vgpu_types[k].id == g->vgpus[i].type)
                name = b->vgpu_types[k].name;
        text_add(t, "%s\"%s\"", first ? "" : ", ", name);
        first = false;
    }
    text_add(t, "]");
}

static void add_settings(text_t *t, const gpu_t *g, const board_t *b) {
    static const char *const modes[] = {"default", "exclusive_thread", "prohibited", "exclusive_process"};
    static const char *const virtual[] = {"none", "passthrough", "vgpu", "host-vgpu", "host-vsga"};
    text_add(t, "\"temperature\": %d, \"memory_temperature\": %d, \"power_w\": %g, \"power_limit_w\": %g, ",
             g->temperature, g->memory_temperature, g->power_mw / 1000.0, g->power_limit_mw / 1000.0);
    text_add(t, "\"persistence\": %s, \"compute_mode\": \"%s\", ", g->persistence ? "true" : "false",
             modes[g->compute_mode & 3]);
    if (b->ecc_supported)
        text_add(t, "\"ecc\": {\"current\": %s, \"pending\": %s}, ", g->ecc_current ? "true" : "false",
                 g->ecc_pending ? "true" : "false");
    else
        text_add(t, "\"ecc\": null, ");
    text_add(t, "\"utilization\": %d, \"memory_utilization\": %d, \"timeslice\": %d, \"accounting\": %s, ", g->util_gpu,
             g->util_memory, g->timeslice, g->accounting ? "true" : "false");
    text_add(t, "\"locked_clocks\": {\"graphics\": [%d, %d], \"memory\": [%d, %d]}, ", g->lock_sm[0], g->lock_sm[1],
             g->lock_mem[0], g->lock_mem[1]);
    text_add(t, "\"virtualization\": \"%s\", \"heterogeneous\": %s, \"reset_supported\": %s, \"draining\": %s, ",
             virtual[g->virtualization], g->heterogeneous ? "true" : "false", g->reset_supported ? "true" : "false",
             g->draining ? "true" : "false");
}

static void add_gpu(text_t *t, const call_t *c, int n) {
    device_t d = {.n = n, .g = &c->s->gpus[n], .stat = &sim->gpus[n], .b = &sim->boards[sim->gpus[n].board]};
    text_add(t, "{\"index\": %d, \"uuid\": \"%s\", \"pci\": \"%04x:%02x:%02x.0\", \"minor\": %d, \"serial\": \"%s\", ",
             d.g->removed ? -1 : index_of_gpu(c, n), d.stat->uuid, d.stat->domain, d.stat->bus, d.stat->device,
             d.g->minor, d.stat->serial);
    text_add(t, "\"board\": ");
    text_json(t, d.b->key);
    text_add(t, ", \"name\": ");
    text_json(t, d.b->name);
    text_add(t, ", \"state\": \"%s\", \"memory_mib\": %lld, ",
             d.g->removed ? "removed" : d.g->lost ? "lost" : "ok", d.b->memory_mib);
    add_settings(t, d.g, d.b);
    add_mig(t, &d);
    text_add(t, ", ");
    add_holders(t, d.g);
    text_add(t, ", ");
    add_vgpus(t, d.g, d.b);
    text_add(t, "}");
}

static void add_faults(text_t *t) {
    text_add(t, "\"faults\": [");
    bool first = true;
    for (int i = 0; i < MAX_FAULTS; i++) {
        const fault_t *f = &sim->faults[i];
        if (!f->used)
            continue;
        text_add(t, "%s{\"call\": \"%s\", \"nth\": %llu, \"times\": %llu, \"error\": \"%s\", \"seen\": %llu}",
                 first ? "" : ", ", f->call, f->nth, f->times, error_name((nvmlReturn_t)f->error), f->count);
        first = false;
    }
    text_add(t, "], \"kill\": ");
    if (sim->kill_at)
        text_add(t, "{\"mutation\": %llu, \"before\": %s}", sim->kill_at, sim->kill_before ? "true" : "false");
    else
        text_add(t, "null");
}

static void add_nodes(text_t *t, const slot_t *s) {
    text_add(t, "\"boot_id\": \"%s\", \"device_nodes\": ", s->boot_id);
    if (!s->node_dir[0]) {
        text_add(t, "null, ");
        return;
    }
    text_add(t, "{\"directory\": ");
    text_json(t, s->node_dir);
    text_add(t, ", \"error\": ");
    if (nodes_are_due(s))
        text_json(t, strerror(sim->node_error));
    else
        text_add(t, "null");
    text_add(t, "}, ");
}

void control_dump(const call_t *c, text_t *t) {
    static const char *const permissions[] = {"granted", "denied", "root"};
    static const char *const uuids[] = {"same", "new", "swap"};
    static const char *const orders[] = {"board", "ascending", "descending"};
    const slot_t *s = c->s;
    text_add(t, "{\"driver\": {\"present\": %s, \"version\": \"%s\", \"nvml\": \"%s\", \"cuda\": %d}, ",
             s->driver_present ? "true" : "false", s->driver_version, s->nvml_version, s->cuda_version);
    text_add(t, "\"permission\": \"%s\", \"mig_uuid\": \"%s\", \"placement_order\": \"%s\", \"log\": %s, ",
             permissions[s->permission], uuids[s->uuid_mode], orders[s->order_mode], sim->log_on ? "true" : "false");
    add_nodes(t, s);
    text_add(t, "\"seed\": ");
    text_json(t, sim->seed);
    text_add(t, ", \"boots\": %u, \"mutations\": %llu, ", s->boots, s->mutation);
    add_faults(t);
    text_add(t, ", \"gpus\": [");
    for (int i = 0; i < sim->ngpus; i++) {
        text_add(t, "%s", i ? ", " : "");
        add_gpu(t, c, i);
    }
    text_add(t, "], ");
    add_boards(t);
    text_add(t, "}");
}
