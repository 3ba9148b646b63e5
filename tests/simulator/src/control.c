/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* The verbs of simctl and nvidia-smi that change the simulated world. They go through the same lock, commit and log
 * as NVML calls; only what a real host does by itself (a reset, a time slice) counts as a mutation. */
#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int argc;
    const char **argv;
    text_t *answer;
    bool failed;
} verb_t;

static const char *arg(const verb_t *v, int i) {
    return i < v->argc ? v->argv[i] : "";
}

static int number(const verb_t *v, int i) {
    return atoi(arg(v, i));
}

static void fail(verb_t *v, const char *message) {
    v->failed = true;
    text_add(v->answer, "%s", message);
}

static gpu_t *gpu_arg(verb_t *v, const call_t *c, int i) {
    int n = number(v, i);
    if (n < 0 || n >= sim->ngpus) {
        fail(v, "no such GPU");
        return NULL;
    }
    return &c->s->gpus[n];
}

static const board_t *board_of(int n) {
    return &sim->boards[sim->gpus[n].board];
}

/* ---- set ---- */

typedef struct {
    const char *word;
    size_t offset;
} int_field_t;

#define FIELD(type, word, member) {word, offsetof(type, member)}

static const int_field_t host_fields[] = {
    FIELD(slot_t, "permission", permission), FIELD(slot_t, "mig-uuid", uuid_mode),
    FIELD(slot_t, "placement-order", order_mode), FIELD(slot_t, "cuda-version", cuda_version), {NULL, 0}};

static const int_field_t gpu_fields[] = {
    FIELD(gpu_t, "temperature", temperature), FIELD(gpu_t, "memory-temperature", memory_temperature),
    FIELD(gpu_t, "power-usage", power_mw), FIELD(gpu_t, "power-limit", power_limit_mw),
    FIELD(gpu_t, "persistence", persistence), FIELD(gpu_t, "compute-mode", compute_mode),
    FIELD(gpu_t, "utilization", util_gpu), FIELD(gpu_t, "memory-utilization", util_memory),
    FIELD(gpu_t, "encoder-utilization", util_encoder), FIELD(gpu_t, "decoder-utilization", util_decoder),
    FIELD(gpu_t, "fan-speed", fan_speed), FIELD(gpu_t, "nvlink", nvlink), FIELD(gpu_t, "virtualization", virtualization),
    FIELD(gpu_t, "reset", reset_supported), FIELD(gpu_t, "minor", minor), FIELD(gpu_t, "timeslice", timeslice),
    FIELD(gpu_t, "clock-sm", clock_sm_now), FIELD(gpu_t, "clock-memory", clock_mem_now),
    FIELD(gpu_t, "remapped-corrected", remapped[0]), FIELD(gpu_t, "remapped-uncorrected", remapped[1]),
    FIELD(gpu_t, "remap-pending", remapped[2]), FIELD(gpu_t, "remap-failure", remapped[3]),
    FIELD(gpu_t, "retired-single-bit", retired[0]), FIELD(gpu_t, "retired-double-bit", retired[1]), {NULL, 0}};

static const int_field_t *find_field(const int_field_t *fields, const char *word) {
    for (; fields->word; fields++)
        if (strcmp(fields->word, word) == 0)
            return fields;
    return NULL;
}

static void set_driver(call_t *c, int present) {
    slot_t *s = c->s;
    if (s->driver_present && !present)
        for (int i = 0; i < sim->ngpus; i++)
            gpu_unload(&s->gpus[i], board_of(i));
    s->driver_present = present;
}

static const char no_numbers[] = "the driver's table of MIG capabilities ends at 32 GPUs (by minor), 15 GPU instances and "
                                 "8 compute instances; device nodes are only for hosts within it";

/* Turns the device nodes on in `path`, or off for "". Nothing is kept of a try that fails. */
static void set_device_nodes(verb_t *v, slot_t *s, const char *path) {
    char old[PATH_LEN];
    copy_text(old, sizeof old, s->node_dir);
    if (*path && access("/proc/driver/nvidia", F_OK) == 0) {
        fail(v, "this machine has NVIDIA's own driver; simulated nodes would take the place of its nodes");
        return;
    }
    if (*path && !nodes_have_numbers(s)) {
        fail(v, no_numbers);
        return;
    }
    copy_text(s->node_dir, sizeof s->node_dir, path);
    int error = *path ? nodes_settle_here(s) : 0;
    if (*path && error == 0)
        error = nodes_make(s);
    bool moved = strcmp(old, path) != 0;
    if (moved)
        nodes_remove(error ? path : old);
    if (error) {
        v->failed = true;
        text_add(v->answer, "cannot make device nodes in %s: %s", path, strerror(error));
    }
}

/* `id` names a boot of the machine: the GPUs go through each boot once. "": a reboot that only the test knows of. */
static void reboot(verb_t *v, call_t *c, const char *id) {
    if (*id && strcmp(c->s->boot_id, id) == 0) {
        text_add(v->answer, "0");
        return;
    }
    if (*id)
        copy_text(c->s->boot_id, sizeof c->s->boot_id, id);
    host_reboot(c->s);
    int error = c->s->node_dir[0] ? nodes_settle_here(c->s) : 0;
    c->changed = true;
    v->failed = error != 0;
    text_add(v->answer, "%s%s%s", error ? c->s->node_dir : "1", error ? ": " : "", error ? strerror(error) : "");
}

static void set_host(verb_t *v, call_t *c) {
    const char *field = arg(v, 1), *value = arg(v, 2);
    const int_field_t *f = find_field(host_fields, field);
    c->changed = true;
    if (f)
        *(int *)((char *)c->s + f->offset) = atoi(value);
    else if (strcmp(field, "driver") == 0)
        set_driver(c, atoi(value));
    else if (strcmp(field, "driver-version") == 0)
        copy_text(c->s->driver_version, sizeof c->s->driver_version, value);
    else if (strcmp(field, "nvml-version") == 0)
        copy_text(c->s->nvml_version, sizeof c->s->nvml_version, value);
    else if (strcmp(field, "device-nodes") == 0)
        set_device_nodes(v, c->s, value);
    else if (strcmp(field, "log") == 0)
        sim->log_on = atoi(value);
    else
        fail(v, "no such field");
}

static void set_mig(verb_t *v, gpu_t *g, const board_t *b, int on) {
    if (!b->mig) {
        fail(v, "this board has no MIG");
        return;
    }
    if (!on)
        mig_clear(g, b);
    g->mig_current = g->mig_pending = on;
}

/* vGPUs are made through sysfs, not through NVML; this is how a test lets NVML see them. */
static void set_vgpus(verb_t *v, gpu_t *g, const board_t *b, const char *list) {
    memset(g->vgpus, 0, sizeof g->vgpus);
    int n = 0;
    while (*list && n < MAX_VGPUS) {
        size_t len = strcspn(list, ",");
        const vgpu_type_t *type = NULL;
        for (int i = 0; i < b->nvgpu_types; i++)
            if (strlen(b->vgpu_types[i].name) == len && strncmp(b->vgpu_types[i].name, list, len) == 0)
                type = &b->vgpu_types[i];
        if (!type) {
            fail(v, "no such vGPU type on this board");
            return;
        }
        g->vgpus[n] = (vgpu_t){.used = 1, .type = type->id, .instance = (unsigned int)n + 1, .gi = -1};
        n++;
        list += len + (list[len] == ',');
    }
}

static void set_gpu(verb_t *v, call_t *c) {
    gpu_t *g = gpu_arg(v, c, 1);
    if (!g)
        return;
    const board_t *b = board_of(number(v, 1));
    const char *field = arg(v, 2), *value = arg(v, 3);
    const int_field_t *f = find_field(gpu_fields, field);
    c->changed = true;
    if (f)
        *(int *)((char *)g + f->offset) = atoi(value);
    else if (strcmp(field, "mig") == 0)
        set_mig(v, g, b, atoi(value));
    else if (strcmp(field, "ecc") == 0 && b->ecc_supported)
        g->ecc_current = g->ecc_pending = atoi(value);
    else if (strcmp(field, "ecc") == 0)
        fail(v, "this board has no ECC");
    else if (strcmp(field, "ecc-corrected") == 0)
        g->ecc[0][0] = g->ecc[0][1] = strtoull(value, NULL, 10);
    else if (strcmp(field, "ecc-uncorrected") == 0)
        g->ecc[1][0] = g->ecc[1][1] = strtoull(value, NULL, 10);
    else if (strcmp(field, "clock-reasons") == 0)
        g->clock_reasons = strtoull(value, NULL, 0);
    else if (strcmp(field, "energy") == 0)
        g->energy_mj = strtoull(value, NULL, 10);
    else if (strcmp(field, "vgpus") == 0)
        set_vgpus(v, g, b, value);
    else
        fail(v, "no such field");
    if (strcmp(field, "minor") == 0 && c->s->node_dir[0] && !nodes_have_numbers(c->s))
        fail(v, no_numbers);
}

/* ---- holders ---- */

static void hold(verb_t *v, call_t *c) {
    gpu_t *g = gpu_arg(v, c, 1);
    if (!g)
        return;
    int gi = number(v, 3), ci = number(v, 4);
    if ((gi >= 0 && !gi_by_id(g, gi)) || (ci >= 0 && !ci_by_id(g, gi, ci))) {
        fail(v, "no such instance on this GPU");
        return;
    }
    for (int i = 0; i < MAX_HOLDERS; i++) {
        holder_t *h = &g->holders[i];
        if (h->used)
            continue;
        *h = (holder_t){.used = 1, .kind = number(v, 2), .gi = gi, .ci = ci, .pid = (unsigned int)number(v, 5),
                        .memory_mib = atoll(arg(v, 6))};
        copy_text(h->name, sizeof h->name, arg(v, 7));
        g->clock_reasons &= ~1ull;
        c->changed = true;
        return;
    }
    fail(v, "too many holders on this GPU");
}

/* Arguments: GPU, pid, GPU instance, compute instance; -1 means any. Answers how many were let go. */
static void release(verb_t *v, call_t *c) {
    int gpu = number(v, 1), pid = number(v, 2), gi = number(v, 3), ci = number(v, 4), n = 0;
    for (int k = 0; k < sim->ngpus; k++)
        for (int i = 0; i < MAX_HOLDERS; i++) {
            holder_t *h = &c->s->gpus[k].holders[i];
            if (!h->used || (gpu >= 0 && gpu != k) || (pid >= 0 && h->pid != (unsigned int)pid) ||
                (gi >= 0 && h->gi != gi) || (ci >= 0 && h->ci != ci))
                continue;
            h->used = 0;
            n++;
        }
    c->changed = n > 0;
    text_add(v->answer, "%d", n);
}

/* ---- what happens to hardware ---- */

static void lose(verb_t *v, call_t *c) {
    gpu_t *g = gpu_arg(v, c, 1);
    if (!g)
        return;
    g->lost = number(v, 2);
    c->changed = true;
}

static void xid(verb_t *v, call_t *c) {
    if (!gpu_arg(v, c, 1))
        return;
    push_event(c->s, number(v, 1), number(v, 3), number(v, 4), NVML_EVENT_XID, strtoull(arg(v, 2), NULL, 10));
    c->changed = true;
}

static nvmlReturn_t reset(verb_t *v, call_t *c) {
    gpu_t *g = gpu_arg(v, c, 1);
    if (!g)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t r = may_write(c);
    if (r == NVML_SUCCESS)
        r = gpu_reset(g, board_of(number(v, 1)));
    c->changed = r == NVML_SUCCESS;
    return r;
}

/* The time slice of a whole GPU: 0 default, 1 short, 2 medium, 3 long (hosts.md, section 4). */
static nvmlReturn_t timeslice(verb_t *v, call_t *c) {
    gpu_t *g = gpu_arg(v, c, 1);
    if (!g || number(v, 2) < 0 || number(v, 2) > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t r = may_write(c);
    if (r != NVML_SUCCESS || g->lost)
        return r != NVML_SUCCESS ? r : NVML_ERROR_GPU_IS_LOST;
    if (g->mig_current)
        return NVML_ERROR_NOT_SUPPORTED;
    c->changed = g->timeslice != number(v, 2);
    g->timeslice = number(v, 2);
    return NVML_SUCCESS;
}

/* ---- what tests inject ---- */

static void add_fault(verb_t *v) {
    int error = error_by_name(arg(v, 4));
    if (error <= NVML_SUCCESS) {
        fail(v, "no such error; give the name of one, such as IN_USE");
        return;
    }
    for (int i = 0; i < MAX_FAULTS; i++) {
        fault_t *f = &sim->faults[i];
        if (f->used)
            continue;
        *f = (fault_t){.nth = strtoull(arg(v, 2), NULL, 10), .times = strtoull(arg(v, 3), NULL, 10), .error = error,
                       .late = number(v, 5)};
        copy_text(f->call, sizeof f->call, arg(v, 1));
        __atomic_store_n(&f->used, 1, __ATOMIC_RELEASE);
        return;
    }
    fail(v, "too many faults; clear some first");
}

static void clear_faults(const verb_t *v) {
    for (int i = 0; i < MAX_FAULTS; i++)
        if (!*arg(v, 1) || strcmp(sim->faults[i].call, arg(v, 1)) == 0)
            sim->faults[i].used = 0;
}

/* ---- dispatch ---- */

static nvmlReturn_t run(verb_t *v, call_t *c) {
    const char *verb = arg(v, 0);
    if (strcmp(verb, "reset") == 0)
        return reset(v, c);
    if (strcmp(verb, "timeslice") == 0)
        return timeslice(v, c);
    if (strcmp(verb, "dump") == 0) {
        control_dump(c, v->answer);
    } else if (strcmp(verb, "set-host") == 0) {
        set_host(v, c);
    } else if (strcmp(verb, "set-gpu") == 0) {
        set_gpu(v, c);
    } else if (strcmp(verb, "hold") == 0) {
        hold(v, c);
    } else if (strcmp(verb, "release") == 0) {
        release(v, c);
    } else if (strcmp(verb, "lose") == 0) {
        lose(v, c);
    } else if (strcmp(verb, "xid") == 0) {
        xid(v, c);
    } else if (strcmp(verb, "reboot") == 0) {
        reboot(v, c, arg(v, 1));
    } else if (strcmp(verb, "fault") == 0) {
        add_fault(v);
    } else if (strcmp(verb, "clear-faults") == 0) {
        clear_faults(v);
    } else if (strcmp(verb, "kill") == 0) {
        sim->kill_at = strtoull(arg(v, 1), NULL, 10);
        sim->kill_before = number(v, 2);
    } else if (strcmp(verb, "log-clear") == 0) {
        sim_log_clear();
    } else {
        fail(v, "no such verb");
    }
    return v->failed ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

static void join_args(const verb_t *v, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    for (int i = 1; i < v->argc && used + 8 < size; i++) {
        char safe[200];
        json_escape(v->argv[i], safe, sizeof safe);
        int n = snprintf(out + used, size - used, "%s\"%d\": \"%s\"", i > 1 ? ", " : "", i, safe);
        if (n < 0 || (size_t)n >= size - used) {
            out[used] = '\0';
            return;
        }
        used += (size_t)n;
    }
}

/* One verb on the state in `dir`. 0 and the verb's text, or an NVML code and a message; `*out` is to be given back to
 * simFree. It must not be mixed with an initialised NVML in the same process: both map the state. */
EXPORT int simControl(const char *dir, const char *caller, int argc, const char **argv, char **out) {
    text_t answer = {0};
    verb_t v = {argc, argv, &answer, false};
    char name[64], args[ARGS_LEN];
    text_add(&answer, "%s", "");
    if (argc > 1 && strcmp(argv[0], "create") == 0) {
        bool ok = control_create(dir, argv[1], &answer);
        *out = answer.data;
        return ok ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
    }
    int opened = sim ? NVML_ERROR_ALREADY_INITIALIZED : sim_open(dir);
    if (opened != NVML_SUCCESS) {
        *out = answer.data;
        return opened;
    }
    bool own = strcmp(arg(&v, 0), "reset") == 0 || strcmp(arg(&v, 0), "timeslice") == 0;
    snprintf(name, sizeof name, "%s.%s", caller, arg(&v, 0));
    join_args(&v, args, sizeof args);
    call_t c;
    bool looks = strcmp(arg(&v, 0), "dump") == 0;
    nvmlReturn_t r = call_begin(&c, name, looks ? READ : WRITE, "%s", args);
    c.api = own && strcmp(caller, "simctl") != 0;
    c.quiet = looks || strcmp(arg(&v, 0), "log-clear") == 0;
    if (r == NVML_SUCCESS)
        r = run(&v, &c);
    r = call_end(&c, r);
    sim_close();
    *out = answer.data;
    return (int)r;
}

EXPORT void simFree(void *text) {
    free(text);
}
