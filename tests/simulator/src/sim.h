/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* The simulator's own state and the way every call goes through it.
 *
 * state.bin holds the boards (never changed after `simctl create`) and two copies of everything that can change.
 * A writer holds the lock, copies the active copy to the other one, changes that, and flips one index: a process that
 * dies anywhere leaves either the old or the new state. The log line of a change lives inside the new copy until it
 * has been appended to calls.log, so a death between the two loses no record.
 */
#ifndef SIM_H
#define SIM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "nvml.h"

#define EXPORT __attribute__((visibility("default")))

/* The host that a process means when NVML_SIM_STATE says nothing: a virtual machine has one, as it has one driver. */
#define SIM_DEFAULT_STATE "/var/lib/nvmlsim"

#define SIM_MAGIC 0x474D53494D303031ull
#define SIM_LAYOUT 4u /* raise it when any struct below changes: an old state is refused, not misread */

enum {
    MAX_GPUS = 32,
    MAX_BOARDS = 16,
    MAX_PROFILES = 32,
    MAX_PLACES = 64,
    MAX_CI_PROFILES = 12,
    MAX_CI_STARTS = 32,
    MAX_VGPU_TYPES = 64,
    MAX_GIS = 64,
    MAX_CIS = 64,
    MAX_HOLDERS = 64,
    MAX_VGPUS = 64,
    MAX_EVENTS = 64,
    MAX_FAULTS = 32,
    UUID_LEN = 48,
    NAME_LEN = 96,
    PATH_LEN = 256,
    BOOT_ID_LEN = 40,
    ARGS_LEN = 640,
    RECORD_LEN = 2048
};

/* ---- boards: from the YAML file, never changed afterwards ---- */

typedef struct {
    int query;   /* NVML enum that a client asks with */
    int id;      /* what NVML returns and Create takes */
    int slices;  /* compute slices of the GPU instance that it takes */
    int max;     /* instances of it in one GPU instance */
    int sm;
    int nstarts;
    int starts[MAX_CI_STARTS]; /* in compute slices, relative to the GPU instance */
} ci_profile_t;

typedef struct {
    char name[32]; /* "1g.10gb+me" */
    int query, id, slices, size, max, sm, p2p, capabilities;
    long long memory_mib;
    int ce, dec, enc, jpeg, ofa;
    int nplaces;
    int starts[MAX_PLACES]; /* in the order of the file: the possible placements */
    int gi_ids[MAX_PLACES]; /* instance id for the start of the same index */
    int order[MAX_PLACES];  /* starts in the order that a create without placement tries */
    int ncis;
    ci_profile_t cis[MAX_CI_PROFILES];
} profile_t;

typedef struct {
    char name[64];
    char vclass[32];
    unsigned int id;
    int gi_profile; /* index into profiles, -1: time-sliced */
    int max, max_per_gi;
    long long fb_mib;
} vgpu_type_t;

typedef struct {
    char key[48], name[NAME_LEN], vbios[32];
    int arch, brand, cc_major, cc_minor, sm, cores_per_sm, bus_width, pcie_gen, pcie_width;
    unsigned int pci_device_id, pci_subsystem_id;
    long long memory_mib, reserved_mib, bar1_mib;
    int ecc_supported, retired_pages, fan;
    int power_min_mw, power_max_mw, power_default_mw, power_idle_mw;
    int temp_idle, temp_shutdown, temp_slowdown, temp_mem_max, temp_gpu_max;
    int clock_sm, clock_mem, clock_video;
    int mig, resetless, compute_slices, memory_slices;
    int vgpu_supported;
    int nvlink; /* how many GPUs of it, one after the other, NVLink joins; 0: none */
    int nprofiles, nvgpu_types;
    profile_t profiles[MAX_PROFILES];
    vgpu_type_t vgpu_types[MAX_VGPU_TYPES];
} board_t;

typedef struct {
    int board;
    char uuid[UUID_LEN], serial[32];
    unsigned int domain, bus, device;
} gpu_static_t;

/* ---- what can change ---- */

typedef struct {
    int used, id, profile, start;
    unsigned int birth; /* a handle to a destroyed instance must not reach its successor */
    int sched_policy, sched_arr, sched_avg, sched_time, heterogeneous;
} gi_t;

typedef struct {
    int used, gi, id, profile, start, index; /* profile: index into the GI profile's cis; index: MIG device index */
    unsigned int birth;
    char uuid[UUID_LEN];
} ci_t;

enum { HOLD_COMPUTE, HOLD_GRAPHICS, HOLD_MPS, HOLD_LEAK };

typedef struct {
    int used, kind, gi, ci; /* gi, ci: -1 = the GPU itself */
    unsigned int pid;
    long long memory_mib;
    char name[64];
} holder_t;

typedef struct {
    unsigned int type, instance;
    int used, gi;
} vgpu_t;

/* MIG UUIDs that were given up, for the switch that swaps them between slices. */
typedef struct {
    unsigned long long key;
    char uuid[UUID_LEN];
} old_uuid_t;

typedef struct {
    int mig_current, mig_pending;
    int lost, removed, draining, reset_supported, minor;
    int temperature, memory_temperature, power_mw, power_limit_mw;
    int persistence, compute_mode, ecc_current, ecc_pending, accounting, timeslice;
    int util_gpu, util_memory, util_encoder, util_decoder, fan_speed;
    int nvlink; /* GPUs of one number other than 0 are joined with each other */
    int virtualization, heterogeneous, sched_policy, sched_arr, sched_avg, sched_time;
    int clock_sm_now, clock_mem_now; /* -1: follow the load */
    int lock_sm[2], lock_mem[2];     /* lowest and highest MHz that clocks are locked to; 0 and 0: not locked */
    unsigned long long ecc[2][2];    /* [corrected, uncorrected][volatile, aggregate] */
    int remapped[4];                 /* corrected, uncorrected, pending, failure */
    int retired[2];                  /* pages: single bit, double bit */
    unsigned long long clock_reasons;
    unsigned long long energy_mj;
    unsigned int births;
    gi_t gis[MAX_GIS];
    ci_t cis[MAX_CIS];
    holder_t holders[MAX_HOLDERS];
    vgpu_t vgpus[MAX_VGPUS];
    unsigned int nold;
    old_uuid_t old[MAX_CIS];
} gpu_t;

typedef struct {
    unsigned long long seq;
    int gpu, gi, ci;
    unsigned long long type, data;
} event_t;

enum { PERMISSION_GRANTED, PERMISSION_DENIED, PERMISSION_ROOT };
enum { UUID_SAME, UUID_NEW, UUID_SWAP };
enum { ORDER_BOARD, ORDER_ASCENDING, ORDER_DESCENDING };

typedef struct {
    unsigned long long commit;   /* every change, simctl's included */
    unsigned long long mutation; /* changes made by NVML calls and by nvidia-smi */
    unsigned int record_len;
    char record[RECORD_LEN]; /* the log line of this commit */
    int driver_present, permission, uuid_mode, order_mode;
    char driver_version[80], nvml_version[80];
    int cuda_version;
    unsigned int boots;
    char boot_id[BOOT_ID_LEN];                   /* the machine's boot that these GPUs have gone through */
    char node_dir[PATH_LEN];                     /* where device nodes are kept; "": nowhere */
    unsigned long long node_device, node_inode;  /* which directory that is on the host; a container has another */
    unsigned long long event_seq;
    event_t events[MAX_EVENTS]; /* a ring: event with seq s is at s % MAX_EVENTS */
    gpu_t gpus[MAX_GPUS];
} slot_t;

/* ---- what tests inject; shared between processes, changed with atomics ---- */

typedef struct {
    int used, error;
    int late; /* the call does its work and then answers the error */
    char call[64];
    unsigned long long nth, times; /* times 0: always from the nth on */
    unsigned long long count;
} fault_t;

typedef struct {
    unsigned long long magic;
    unsigned int layout;
    unsigned int size;
    int ngpus, nboards;
    char seed[256];
    unsigned int active;        /* which slot is true */
    unsigned long long seq;     /* last call number given out */
    unsigned long long logged;  /* last commit whose record is in calls.log */
    unsigned long long noded;   /* last commit that the device nodes show */
    int node_error;             /* errno of the last try to make them */
    int log_on;
    unsigned long long kill_at; /* changes still to go before a process dies; 0: nobody dies */
    int kill_before;
    fault_t faults[MAX_FAULTS];
    board_t boards[MAX_BOARDS];
    gpu_static_t gpus[MAX_GPUS];
    slot_t slots[2];
} state_t;

/* ---- one call ---- */

enum { READ, WRITE };

typedef struct {
    const char *name;
    int mode;
    bool api;      /* an NVML call or nvidia-smi: counts as a mutation and can be killed */
    bool changed;  /* set by a writer that has changed the working copy */
    bool quiet;    /* no log line: simctl looking around */
    bool contained; /* an NVML call of a process that sees other device nodes than the host has */
    nvmlReturn_t late; /* what is answered although the work was done */
    slot_t *s;     /* the active copy for a reader, the working copy for a writer */
    char args[ARGS_LEN];
    char result[256]; /* more of the result than its code, as JSON members without braces */
} call_t;

extern state_t *sim; /* the mapped state; valid while a call is open */

/* Opens a call: library initialised, lock taken, fault looked up. Anything but NVML_SUCCESS must go to call_end. */
nvmlReturn_t call_begin(call_t *c, const char *name, int mode, const char *args, ...)
    __attribute__((format(printf, 4, 5)));
/* Closes it: commits a change that succeeded, writes the log line, unlocks, and returns `r`. */
nvmlReturn_t call_end(call_t *c, nvmlReturn_t r);
/* Adds to the logged result, as JSON members: `"id": 3`. */
void call_result(call_t *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* NULL or "": the default. A state that may be read but not written serves reading calls. Answers an NVML code. */
int sim_open(const char *dir);
void sim_close(void);
const char *sim_dir(void);
nvmlReturn_t sim_log_clear(void);
void sim_lock_process(void);
void sim_unlock_process(void);

/* ---- handles ---- */

typedef struct {
    int gpu, gi, ci; /* -1: not of that kind */
    unsigned int birth;
} handle_t;

nvmlDevice_t device_handle(int gpu);
nvmlDevice_t mig_handle(int gpu, const ci_t *ci);
nvmlGpuInstance_t gi_handle(int gpu, const gi_t *gi);
nvmlComputeInstance_t ci_handle(int gpu, const ci_t *ci);
/* JSON text that names what a handle means, for the log; a static buffer per thread and turn. */
const char *name_of(const void *handle);

/* A device handle decoded and checked against the state. */
typedef struct {
    int n;
    gpu_t *g;
    const gpu_static_t *stat;
    const board_t *b;
    ci_t *ci; /* set for a MIG device handle */
    gi_t *gi;
} device_t;

enum { ANY_DEVICE, WHOLE_GPU, WHOLE_GPU_READING };
/* INVALID_ARGUMENT: no such handle, or a MIG device where the call is about a GPU. NOT_SUPPORTED: a MIG device asked for
 * a reading that only the GPU has. GPU_IS_LOST: the GPU is gone. */
nvmlReturn_t find_device(const call_t *c, nvmlDevice_t handle, int kind, device_t *out);
nvmlReturn_t find_gi(const call_t *c, nvmlGpuInstance_t handle, device_t *out);
nvmlReturn_t find_ci(const call_t *c, nvmlComputeInstance_t handle, device_t *out);
nvmlReturn_t may_write(const call_t *c);
bool is_counted(const call_t *c, int n);
int gpu_count(const call_t *c);
int gpu_at_index(const call_t *c, unsigned int index);
int index_of_gpu(const call_t *c, int n);

/* ---- rules of MIG (mig.c) ---- */

const profile_t *gi_profile(const device_t *d);
const ci_profile_t *ci_profile(const device_t *d, const ci_t *ci);
int profile_by_query(const board_t *b, unsigned int query);
int profile_by_id(const board_t *b, unsigned int id);
bool mig_answers(const call_t *c, const device_t *d);
unsigned int gi_capacity(const device_t *d, int profile);
unsigned int ci_capacity(const device_t *d, const ci_profile_t *p);
int gi_members(const gpu_t *g, const gi_t *gi);
gi_t *gi_by_id(gpu_t *g, int id);
ci_t *ci_by_id(gpu_t *g, int gi, int id);
bool has_holder(const gpu_t *g, int gi, int ci);
bool has_any_holder(const gpu_t *g);
nvmlReturn_t mig_set_mode(const device_t *d, unsigned int mode, nvmlReturn_t *activation, bool *changed);
nvmlReturn_t mig_create_gi(const call_t *c, const device_t *d, unsigned int id, const nvmlPlacement_t *place, gi_t **out);
nvmlReturn_t mig_create_ci(const call_t *c, const device_t *d, unsigned int id, const nvmlPlacement_t *place, ci_t **out);
void mig_clear(gpu_t *g, const board_t *b);
void mig_remove_ci(gpu_t *g, const board_t *b, ci_t *ci);
void mig_full_name(const device_t *d, const ci_t *ci, char *out, size_t size);

/* ---- what a driver reload, a reset and a reboot do (lifecycle.c) ---- */

void gpu_power_on(gpu_t *g, const board_t *b, int minor);
void gpu_unload(gpu_t *g, const board_t *b);
nvmlReturn_t gpu_reset(gpu_t *g, const board_t *b);
void host_reboot(slot_t *s);
void push_event(slot_t *s, int gpu, int gi, int ci, unsigned long long type, unsigned long long data);

/* ---- device nodes (nodes.c) ---- */

int cap_of_gi(int minor, int gi);
int cap_of_ci(int minor, int gi, int ci);
bool nodes_have_numbers(const slot_t *s);
/* Both answer 0 or an errno: the nodes of `s`, made and removed in its directory; that directory taken for the host's. */
int nodes_make(const slot_t *s);
int nodes_settle_here(slot_t *s);
void nodes_remove(const char *path);
/* Brings the nodes up to the commit of `s`, with the exclusive lock and on the host only; what fails is tried again. */
void nodes_follow(const slot_t *s);
bool nodes_are_due(const slot_t *s);
bool nodes_from_container(const slot_t *s);
bool sees_driver(const call_t *c);
bool sees_gpu(const call_t *c, int n);
bool sees_gi(const call_t *c, int n, int gi);
bool sees_ci(const call_t *c, int n, const ci_t *ci);
/* Index of a MIG device among those of its GPU that the process sees; -1: it does not see this one. */
int visible_index(const call_t *c, const device_t *d, const ci_t *ci);

/* ---- text ---- */

typedef struct {
    char *data;
    size_t len, cap;
} text_t;

void text_add(text_t *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_json(text_t *t, const char *value);
void json_escape(const char *in, char *out, size_t size);
const char *error_name(nvmlReturn_t code);
int error_by_name(const char *name);
void make_uuid(const char *seed, char *out, size_t size);
unsigned long long hash_text(const char *text, unsigned long long start);
void copy_text(char *out, size_t size, const char *in);

#endif
