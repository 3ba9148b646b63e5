/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* A new state from the lines that simctl writes: it has read and checked the board files, so a bad line here is a
 * mistake of simctl, and the answer names that line.
 *
 * One item a line, `word value`; lists are comma-separated. `board`, `profile`, `ci`, `vgpu` open a new record,
 * `gpu` adds a device of a board.
 */
#include "control.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    state_t *st;
    slot_t *s;
    board_t *b;
    profile_t *p;
    ci_profile_t *ci;
    vgpu_type_t *v;
} build_t;

typedef struct {
    const char *word;
    size_t offset;
} field_t;

#define FIELD(type, word, member) {word, offsetof(type, member)}

static const field_t board_ints[] = {
    FIELD(board_t, "arch", arch), FIELD(board_t, "brand", brand), FIELD(board_t, "cc-major", cc_major),
    FIELD(board_t, "cc-minor", cc_minor), FIELD(board_t, "board-sm", sm), FIELD(board_t, "cores-per-sm", cores_per_sm),
    FIELD(board_t, "bus-width", bus_width), FIELD(board_t, "pcie-gen", pcie_gen),
    FIELD(board_t, "pcie-width", pcie_width), FIELD(board_t, "ecc", ecc_supported),
    FIELD(board_t, "retired-pages", retired_pages), FIELD(board_t, "fan", fan),
    FIELD(board_t, "power-min", power_min_mw), FIELD(board_t, "power-max", power_max_mw),
    FIELD(board_t, "power-default", power_default_mw), FIELD(board_t, "power-idle", power_idle_mw),
    FIELD(board_t, "temp-idle", temp_idle), FIELD(board_t, "temp-shutdown", temp_shutdown),
    FIELD(board_t, "temp-slowdown", temp_slowdown), FIELD(board_t, "temp-mem-max", temp_mem_max),
    FIELD(board_t, "temp-gpu-max", temp_gpu_max), FIELD(board_t, "clock-sm", clock_sm),
    FIELD(board_t, "clock-mem", clock_mem), FIELD(board_t, "clock-video", clock_video), FIELD(board_t, "mig", mig),
    FIELD(board_t, "resetless", resetless), FIELD(board_t, "compute-slices", compute_slices),
    FIELD(board_t, "memory-slices", memory_slices), FIELD(board_t, "vgpu-supported", vgpu_supported),
    FIELD(board_t, "nvlink", nvlink), {NULL, 0}};

static const field_t profile_ints[] = {
    FIELD(profile_t, "query", query), FIELD(profile_t, "id", id), FIELD(profile_t, "slices", slices),
    FIELD(profile_t, "size", size), FIELD(profile_t, "max", max), FIELD(profile_t, "sm", sm),
    FIELD(profile_t, "p2p", p2p), FIELD(profile_t, "capabilities", capabilities), FIELD(profile_t, "ce", ce),
    FIELD(profile_t, "dec", dec), FIELD(profile_t, "enc", enc), FIELD(profile_t, "jpeg", jpeg),
    FIELD(profile_t, "ofa", ofa), {NULL, 0}};

static const field_t ci_ints[] = {
    FIELD(ci_profile_t, "ci-query", query), FIELD(ci_profile_t, "ci-id", id), FIELD(ci_profile_t, "ci-slices", slices),
    FIELD(ci_profile_t, "ci-max", max), FIELD(ci_profile_t, "ci-sm", sm), {NULL, 0}};

static const field_t vgpu_ints[] = {
    FIELD(vgpu_type_t, "vgpu-gi-profile", gi_profile), FIELD(vgpu_type_t, "vgpu-max", max),
    FIELD(vgpu_type_t, "vgpu-max-per-gi", max_per_gi), {NULL, 0}};

static bool put_int(const field_t *fields, void *base, const char *word, const char *value) {
    if (!base)
        return false;
    for (; fields->word; fields++)
        if (strcmp(fields->word, word) == 0) {
            *(int *)((char *)base + fields->offset) = atoi(value);
            return true;
        }
    return false;
}

static int put_list(const char *value, int *out, int room) {
    int n = 0;
    while (*value && n < room) {
        char *end;
        out[n++] = (int)strtol(value, &end, 10);
        if (end == value)
            return -1;
        value = *end == ',' ? end + 1 : end;
    }
    return *value ? -1 : n;
}

static bool open_record(build_t *x, const char *word, const char *value) {
    if (strcmp(word, "board") == 0) {
        if (x->st->nboards == MAX_BOARDS)
            return false;
        x->b = &x->st->boards[x->st->nboards++];
        x->p = NULL;
        copy_text(x->b->key, sizeof x->b->key, value);
    } else if (strcmp(word, "profile") == 0) {
        if (!x->b || x->b->nprofiles == MAX_PROFILES)
            return false;
        x->p = &x->b->profiles[x->b->nprofiles++];
        x->ci = NULL;
        copy_text(x->p->name, sizeof x->p->name, value);
    } else if (strcmp(word, "ci") == 0) {
        if (!x->p || x->p->ncis == MAX_CI_PROFILES)
            return false;
        x->ci = &x->p->cis[x->p->ncis++];
    } else if (strcmp(word, "vgpu") == 0) {
        if (!x->b || x->b->nvgpu_types == MAX_VGPU_TYPES)
            return false;
        x->v = &x->b->vgpu_types[x->b->nvgpu_types++];
        copy_text(x->v->name, sizeof x->v->name, value);
    } else {
        return false;
    }
    return true;
}

/* The GPUs of a board are joined in the order in which they come: the first so many, the next so many, and so on. */
static int nvlink_of(const state_t *st, const gpu_static_t *g) {
    int width = st->boards[g->board].nvlink, before = 0;
    for (int i = 0; i < st->ngpus; i++)
        before += st->gpus[i].board == g->board;
    return width > 0 ? 1 + g->board * MAX_GPUS + before / width : 0;
}

static bool add_gpu(build_t *x, const char *value) {
    gpu_static_t *g = &x->st->gpus[x->st->ngpus];
    if (x->st->ngpus == MAX_GPUS ||
        sscanf(value, "%d %x:%x:%x %47s %31s", &g->board, &g->domain, &g->bus, &g->device, g->uuid, g->serial) != 6)
        return false;
    if (g->board < 0 || g->board >= x->st->nboards)
        return false;
    gpu_power_on(&x->s->gpus[x->st->ngpus], &x->st->boards[g->board], x->st->ngpus);
    x->s->gpus[x->st->ngpus].nvlink = nvlink_of(x->st, g);
    x->st->ngpus++;
    return true;
}

static bool put_list_field(build_t *x, const char *word, const char *value) {
    if (x->p && strcmp(word, "starts") == 0)
        return (x->p->nplaces = put_list(value, x->p->starts, MAX_PLACES)) > 0;
    if (x->p && strcmp(word, "gi-ids") == 0)
        return put_list(value, x->p->gi_ids, MAX_PLACES) == x->p->nplaces;
    if (x->p && strcmp(word, "order") == 0)
        return put_list(value, x->p->order, MAX_PLACES) == x->p->nplaces;
    if (x->ci && strcmp(word, "ci-starts") == 0)
        return (x->ci->nstarts = put_list(value, x->ci->starts, MAX_CI_STARTS)) > 0;
    return false;
}

static bool put_other(build_t *x, const char *word, const char *value) {
    if (strcmp(word, "gpu") == 0)
        return add_gpu(x, value);
    if (strcmp(word, "seed") == 0)
        copy_text(x->st->seed, sizeof x->st->seed, value);
    else if (strcmp(word, "boot-id") == 0)
        copy_text(x->s->boot_id, sizeof x->s->boot_id, value);
    else if (strcmp(word, "driver-version") == 0)
        copy_text(x->s->driver_version, sizeof x->s->driver_version, value);
    else if (strcmp(word, "nvml-version") == 0)
        copy_text(x->s->nvml_version, sizeof x->s->nvml_version, value);
    else if (strcmp(word, "cuda-version") == 0)
        x->s->cuda_version = atoi(value);
    else if (strcmp(word, "driver-present") == 0)
        x->s->driver_present = atoi(value);
    else if (x->b && strcmp(word, "name") == 0)
        copy_text(x->b->name, sizeof x->b->name, value);
    else if (x->b && strcmp(word, "vbios") == 0)
        copy_text(x->b->vbios, sizeof x->b->vbios, value);
    else if (x->b && strcmp(word, "pci-device-id") == 0)
        x->b->pci_device_id = (unsigned int)strtoul(value, NULL, 0);
    else if (x->b && strcmp(word, "pci-subsystem-id") == 0)
        x->b->pci_subsystem_id = (unsigned int)strtoul(value, NULL, 0);
    else if (x->b && strcmp(word, "memory") == 0)
        x->b->memory_mib = atoll(value);
    else if (x->b && strcmp(word, "reserved") == 0)
        x->b->reserved_mib = atoll(value);
    else if (x->b && strcmp(word, "bar1") == 0)
        x->b->bar1_mib = atoll(value);
    else if (x->p && strcmp(word, "profile-memory") == 0)
        x->p->memory_mib = atoll(value);
    else if (x->v && strcmp(word, "vgpu-fb") == 0)
        x->v->fb_mib = atoll(value);
    else if (x->v && strcmp(word, "vgpu-id") == 0)
        x->v->id = (unsigned int)strtoul(value, NULL, 0);
    else if (x->v && strcmp(word, "vgpu-class") == 0)
        copy_text(x->v->vclass, sizeof x->v->vclass, value);
    else
        return false;
    return true;
}

static bool put_line(build_t *x, char *line) {
    char *value = strchr(line, ' ');
    if (value)
        *value++ = '\0';
    else
        value = line + strlen(line);
    return open_record(x, line, value) || put_int(board_ints, x->b, line, value) ||
           put_int(profile_ints, x->p, line, value) || put_int(ci_ints, x->ci, line, value) ||
           put_int(vgpu_ints, x->v, line, value) || put_list_field(x, line, value) || put_other(x, line, value);
}

static bool build(build_t *x, const char *text, text_t *answer) {
    char *copy = strdup(text), *rest = copy, *line;
    bool ok = copy != NULL;
    while (ok && (line = strsep(&rest, "\n"))) {
        char kept[160];
        copy_text(kept, sizeof kept, line);
        if (*line && !put_line(x, line)) {
            text_add(answer, "line not understood: %s", kept);
            ok = false;
        }
    }
    free(copy);
    return ok;
}

/* The new state appears under its name in one step: nobody ever opens half of one. */
static bool save(const state_t *st, const char *dir, text_t *answer) {
    char temporary[4300], path[4300];
    snprintf(temporary, sizeof temporary, "%s/state.bin.%d", dir, (int)getpid());
    snprintf(path, sizeof path, "%s/state.bin", dir);
    int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool ok = fd != -1 && write(fd, st, sizeof *st) == (ssize_t)sizeof *st;
    if (fd != -1)
        close(fd);
    ok = ok && rename(temporary, path) == 0;
    if (!ok) {
        unlink(temporary);
        text_add(answer, "cannot write %s", path);
        return false;
    }
    snprintf(path, sizeof path, "%s/calls.log", dir);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd != -1)
        close(fd);
    return true;
}

bool control_create(const char *dir, const char *text, text_t *answer) {
    state_t *st = calloc(1, sizeof *st);
    if (!st)
        return false;
    *st = (state_t){.magic = SIM_MAGIC, .layout = SIM_LAYOUT, .size = sizeof *st, .log_on = 1};
    build_t x = {.st = st, .s = &st->slots[0]};
    x.s->driver_present = 1;
    bool ok = build(&x, text, answer) && save(st, dir, answer);
    free(st);
    return ok;
}
