/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* Device nodes as the driver and nvidia-modprobe make them, and what a process sees that has not all of them.
 *
 * The state remembers which directory is the host's (device and inode number). A process that finds another one under
 * that path is in a container: it changes no nodes, and sees only what it finds there. On the host everything is
 * visible: nvidia-modprobe would make what is missing.
 */
#include "sim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* 195 is NVIDIA's registered major; the other two are given out by the kernel at load and fixed here. */
enum { MAJOR_GPU = 195, MAJOR_UVM = 510, MAJOR_CAPS = 511, MINOR_CTL = 255 };
/* The driver's table of MIG capabilities is one list for 32 GPUs of 15 GPU instances of 8 compute instances. */
enum { TABLE_GPUS = 32, TABLE_GIS = 15, TABLE_CIS = 8, FIRST_CAP = 3 };
enum { CAPS_OF_GI = 1 + TABLE_CIS, CAPS_OF_GPU = TABLE_GIS * CAPS_OF_GI };

static const char caps_dir[] = "nvidia-caps";

typedef struct {
    char name[40]; /* below the directory: "nvidia0", "nvidia-caps/nvidia-cap12" */
    unsigned int major, minor;
    mode_t mode;
} node_t;

int cap_of_gi(int minor, int gi) {
    return FIRST_CAP + CAPS_OF_GPU * minor + CAPS_OF_GI * gi;
}

int cap_of_ci(int minor, int gi, int ci) {
    return cap_of_gi(minor, gi) + 1 + ci;
}

/* Whether every instance that the boards can bear has a number of its own. */
bool nodes_have_numbers(const slot_t *s) {
    for (int n = 0; n < sim->ngpus; n++) {
        const board_t *b = &sim->boards[sim->gpus[n].board];
        if (s->gpus[n].minor >= TABLE_GPUS || b->compute_slices > TABLE_CIS)
            return false;
        for (int i = 0; i < b->nprofiles; i++)
            for (int k = 0; k < b->profiles[i].nplaces; k++)
                if (b->profiles[i].gi_ids[k] >= TABLE_GIS)
                    return false;
    }
    return true;
}

/* ---- what should be there ---- */

typedef bool (*visit_t)(void *arg, const node_t *node); /* false: stop */

static node_t plain_node(const char *name, unsigned int major, unsigned int minor) {
    node_t node = {.major = major, .minor = minor, .mode = 0666};
    copy_text(node.name, sizeof node.name, name);
    return node;
}

static node_t gpu_node(int minor) {
    char name[40];
    snprintf(name, sizeof name, "nvidia%d", minor);
    return plain_node(name, MAJOR_GPU, (unsigned int)minor);
}

/* Only root opens cap1, which lets its holder make and destroy instances; the others may be read by everybody. */
static node_t cap_node(int cap) {
    node_t node = {.major = MAJOR_CAPS, .minor = (unsigned int)cap, .mode = cap == 1 ? 0400 : 0444};
    snprintf(node.name, sizeof node.name, "%s/nvidia-cap%d", caps_dir, cap);
    return node;
}

static bool visit_instances(const gpu_t *g, visit_t visit, void *arg) {
    for (int i = 0; i < MAX_GIS; i++) {
        node_t node = cap_node(cap_of_gi(g->minor, g->gis[i].id));
        if (g->gis[i].used && !visit(arg, &node))
            return false;
    }
    for (int i = 0; i < MAX_CIS; i++) {
        node_t node = cap_node(cap_of_ci(g->minor, g->cis[i].gi, g->cis[i].id));
        if (g->cis[i].used && !visit(arg, &node))
            return false;
    }
    return true;
}

static bool visit_all(const slot_t *s, visit_t visit, void *arg) {
    if (!s->driver_present)
        return true;
    const node_t always[] = {plain_node("nvidiactl", MAJOR_GPU, MINOR_CTL), plain_node("nvidia-uvm", MAJOR_UVM, 0),
                             plain_node("nvidia-uvm-tools", MAJOR_UVM, 1), cap_node(1), cap_node(2)};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!visit(arg, &always[i]))
            return false;
    for (int n = 0; n < sim->ngpus; n++) {
        const gpu_t *g = &s->gpus[n];
        if (g->lost || g->removed)
            continue;
        node_t node = gpu_node(g->minor);
        if (!visit(arg, &node) || !visit_instances(g, visit, arg))
            return false;
    }
    return true;
}

/* ---- making and removing ---- */

typedef struct {
    int dir, error;
    const char *name;
} work_t;

static bool is_other(void *arg, const node_t *node) {
    return strcmp(((const work_t *)arg)->name, node->name) != 0;
}

static bool is_number(const char *text) {
    return *text && text[strspn(text, "0123456789")] == '\0';
}

/* A name that this file makes; all else in the directory belongs to others. */
static bool is_ours(const char *name) {
    static const char gpu[] = "nvidia", cap[] = "nvidia-caps/nvidia-cap";
    return strcmp(name, "nvidiactl") == 0 || strcmp(name, "nvidia-uvm") == 0 || strcmp(name, "nvidia-uvm-tools") == 0 ||
           (strncmp(name, gpu, sizeof gpu - 1) == 0 && is_number(name + sizeof gpu - 1)) ||
           (strncmp(name, cap, sizeof cap - 1) == 0 && is_number(name + sizeof cap - 1));
}

/* Removes from `dir/below` what is ours and not in `wanted` (NULL: nothing is). */
static void remove_stale(int dir, const char *below, const slot_t *wanted) {
    int fd = openat(dir, *below ? below : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd == -1 ? NULL : fdopendir(fd);
    if (!stream) {
        if (fd != -1)
            close(fd);
        return;
    }
    struct dirent *entry;
    while ((entry = readdir(stream))) {
        char name[300];
        struct stat st;
        snprintf(name, sizeof name, "%s%s%s", below, *below ? "/" : "", entry->d_name);
        work_t work = {.name = name};
        if (!is_ours(name) || (wanted && !visit_all(wanted, is_other, &work)))
            continue;
        if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISCHR(st.st_mode))
            unlinkat(dir, name, 0);
    }
    closedir(stream);
}

static bool make_node(void *arg, const node_t *node) {
    work_t *work = arg;
    struct stat st;
    dev_t device = makedev(node->major, node->minor);
    if (fstatat(work->dir, node->name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (S_ISCHR(st.st_mode) && st.st_rdev == device && (st.st_mode & 07777) == node->mode)
            return true;
        unlinkat(work->dir, node->name, 0);
    }
    /* The mode is set by itself: the caller's umask must not take bits away. */
    if (mknodat(work->dir, node->name, S_IFCHR | node->mode, device) == -1 ||
        fchmodat(work->dir, node->name, node->mode, 0) == -1)
        work->error = errno;
    return work->error == 0;
}

void nodes_remove(const char *path) {
    int dir = *path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (dir == -1)
        return;
    remove_stale(dir, caps_dir, NULL);
    remove_stale(dir, "", NULL);
    unlinkat(dir, caps_dir, AT_REMOVEDIR);
    close(dir);
}

int nodes_make(const slot_t *s) {
    work_t work = {.dir = open(s->node_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (work.dir == -1)
        return errno;
    remove_stale(work.dir, caps_dir, s);
    remove_stale(work.dir, "", s);
    if (!s->driver_present)
        unlinkat(work.dir, caps_dir, AT_REMOVEDIR);
    else if (mkdirat(work.dir, caps_dir, 0755) == -1 && errno != EEXIST)
        work.error = errno;
    else
        visit_all(s, make_node, &work);
    close(work.dir);
    return work.error;
}

/* ---- host or container ---- */

int nodes_settle_here(slot_t *s) {
    struct stat st;
    if (stat(s->node_dir, &st) == -1)
        return errno;
    s->node_device = (unsigned long long)st.st_dev;
    s->node_inode = (unsigned long long)st.st_ino;
    return 0;
}

static bool on_host(const slot_t *s) {
    struct stat st;
    return stat(s->node_dir, &st) == 0 && s->node_device == (unsigned long long)st.st_dev &&
           s->node_inode == (unsigned long long)st.st_ino;
}

bool nodes_are_due(const slot_t *s) {
    return s->node_dir[0] && sim->noded != s->commit && on_host(s);
}

void nodes_follow(const slot_t *s) {
    if (!nodes_are_due(s))
        return;
    sim->node_error = nodes_make(s);
    if (sim->node_error == 0)
        sim->noded = s->commit;
}

bool nodes_from_container(const slot_t *s) {
    return s->node_dir[0] && !on_host(s);
}

static bool has_node(const call_t *c, node_t node) {
    char path[sizeof c->s->node_dir + sizeof node.name + 2];
    struct stat st;
    if (!c->contained)
        return true;
    snprintf(path, sizeof path, "%s/%s", c->s->node_dir, node.name);
    return stat(path, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(node.major, node.minor);
}

bool sees_driver(const call_t *c) {
    return has_node(c, plain_node("nvidiactl", MAJOR_GPU, MINOR_CTL));
}

bool sees_gpu(const call_t *c, int n) {
    return !c->contained || has_node(c, gpu_node(c->s->gpus[n].minor));
}

bool sees_gi(const call_t *c, int n, int gi) {
    return !c->contained || has_node(c, cap_node(cap_of_gi(c->s->gpus[n].minor, gi)));
}

bool sees_ci(const call_t *c, int n, const ci_t *ci) {
    return !c->contained ||
           (sees_gi(c, n, ci->gi) && has_node(c, cap_node(cap_of_ci(c->s->gpus[n].minor, ci->gi, ci->id))));
}

int visible_index(const call_t *c, const device_t *d, const ci_t *ci) {
    if (!c->contained)
        return ci->index;
    int index = 0;
    for (int i = 0; i < MAX_CIS; i++)
        index += d->g->cis[i].used && d->g->cis[i].index < ci->index && sees_ci(c, d->n, &d->g->cis[i]);
    return sees_ci(c, d->n, ci) ? index : -1;
}
