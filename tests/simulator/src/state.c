/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* The state file, its lock, and the life of one call. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

state_t *sim = NULL;

static char state_dir[4096];
static int lock_fd = -1, log_fd = -1;
static bool read_only = false; /* no lock but a shared one, no log, no counting: the state is another one's */
static pthread_mutex_t process_mutex = PTHREAD_MUTEX_INITIALIZER;

/* POSIX record locks belong to a process, so that a forked child does not share its parent's lock; threads of one
 * process are kept apart by the mutex. A child that was forked while another thread held the mutex gets a new one. */
void sim_lock_process(void) {
    pthread_mutex_lock(&process_mutex);
}

void sim_unlock_process(void) {
    pthread_mutex_unlock(&process_mutex);
}

static void fresh_mutex(void) {
    pthread_mutex_init(&process_mutex, NULL);
}

__attribute__((constructor)) static void on_load(void) {
    pthread_atfork(sim_lock_process, sim_unlock_process, fresh_mutex);
}

static void lock_file(short type) {
    struct flock f = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    while (fcntl(lock_fd, F_SETLKW, &f) == -1 && errno == EINTR) {
    }
}

const char *sim_dir(void) {
    return state_dir;
}

static int open_in(const char *dir, const char *name, int flags) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return open(path, flags | O_CLOEXEC, 0666);
}

int sim_open(const char *dir) {
    struct stat st;
    if (!dir || !*dir)
        dir = SIM_DEFAULT_STATE;
    if (strlen(dir) >= sizeof state_dir)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    int fd = open_in(dir, "state.bin", O_RDWR);
    read_only = fd == -1 && (errno == EROFS || errno == EACCES);
    if (read_only)
        fd = open_in(dir, "state.bin", O_RDONLY);
    if (fd == -1)
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    if (fstat(fd, &st) == -1 || st.st_size != (off_t)sizeof(state_t)) {
        close(fd);
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    void *map = mmap(NULL, sizeof(state_t), read_only ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return NVML_ERROR_MEMORY;
    sim = map;
    if (sim->magic != SIM_MAGIC || sim->layout != SIM_LAYOUT || sim->size != sizeof(state_t)) {
        sim_close();
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    lock_fd = open_in(dir, "lock", read_only ? O_RDONLY : O_RDWR | O_CREAT);
    if (!read_only)
        log_fd = open_in(dir, "calls.log", O_RDWR | O_CREAT | O_APPEND);
    if (lock_fd == -1 || (log_fd == -1 && !read_only)) {
        sim_close();
        return NVML_ERROR_NO_PERMISSION;
    }
    copy_text(state_dir, sizeof state_dir, dir);
    return NVML_SUCCESS;
}

void sim_close(void) {
    if (sim)
        munmap(sim, sizeof(state_t));
    if (lock_fd != -1)
        close(lock_fd);
    if (log_fd != -1)
        close(log_fd);
    sim = NULL;
    lock_fd = log_fd = -1;
}

static void write_all(const char *data, size_t len) {
    while (len > 0) {
        ssize_t done = write(log_fd, data, len);
        if (done == -1 && errno == EINTR)
            continue;
        if (done <= 0)
            return; /* a full disk must not stop the simulated driver */
        data += done;
        len -= (size_t)done;
    }
}

/* Only with the exclusive lock. A writer that died left its record in the state; its line may be missing in the log,
 * or cut off at any byte. */
static void recover_record(void) {
    slot_t *s = &sim->slots[sim->active & 1];
    if (sim->logged == s->commit)
        return;
    char tail[RECORD_LEN * 2];
    struct stat st;
    if (fstat(log_fd, &st) == 0 && st.st_size > 0) {
        off_t from = st.st_size > (off_t)sizeof tail ? st.st_size - (off_t)sizeof tail : 0;
        ssize_t n = pread(log_fd, tail, sizeof tail, from);
        if (n > 0 && tail[n - 1] != '\n') {
            const char *last = memrchr(tail, '\n', (size_t)n);
            off_t keep = last ? from + (last - tail) + 1 : from;
            if (ftruncate(log_fd, keep) == 0)
                n = keep - from;
        }
        if (n > 0 && s->record_len && memmem(tail, (size_t)n, s->record, s->record_len)) {
            sim->logged = s->commit;
            return;
        }
    }
    if (s->record_len && sim->log_on)
        write_all(s->record, s->record_len);
    sim->logged = s->commit;
}

/* Does what a writer that died has left undone: its log line and its device nodes. */
static void take_lock(int mode) {
    lock_file(mode == WRITE ? F_WRLCK : F_RDLCK);
    const slot_t *s = &sim->slots[sim->active & 1];
    if (read_only || (sim->logged == s->commit && !nodes_are_due(s)))
        return;
    if (mode != WRITE) {
        lock_file(F_UNLCK); /* two readers that both wait to become writers would wait for each other */
        lock_file(F_WRLCK);
    }
    recover_record();
    nodes_follow(&sim->slots[sim->active & 1]);
}

/* Copies what is in use; the rest of the arrays is never looked at. */
static slot_t *working_copy(void) {
    slot_t *from = &sim->slots[sim->active & 1], *to = &sim->slots[!(sim->active & 1)];
    memcpy(to, from, offsetof(slot_t, gpus) + (size_t)sim->ngpus * sizeof(gpu_t));
    to->record_len = 0;
    return to;
}

static bool names_match(const char *rule, const char *call) {
    size_t n = strlen(rule);
    if (strncmp(rule, call, n) != 0)
        return false;
    /* A rule without a version means every version: nvmlDeviceGetCount also stands for nvmlDeviceGetCount_v2, and
     * nvmlInit for what pynvml really calls. */
    if (strcmp(rule, "nvmlInit") == 0 && strcmp(call, "nvmlInitWithFlags") == 0)
        return true;
    return call[n] == '\0' || (call[n] == '_' && call[n + 1] == 'v' && call[n + 2] >= '1' && call[n + 2] <= '9');
}

static nvmlReturn_t injected_fault(const char *call, nvmlReturn_t *late) {
    if (read_only)
        return NVML_SUCCESS; /* nobody could count it */
    for (int i = 0; i < MAX_FAULTS; i++) {
        fault_t *f = &sim->faults[i];
        if (!__atomic_load_n(&f->used, __ATOMIC_ACQUIRE) || !names_match(f->call, call))
            continue;
        unsigned long long n = __atomic_add_fetch(&f->count, 1, __ATOMIC_ACQ_REL);
        if (n < f->nth || (f->times != 0 && n >= f->nth + f->times))
            continue;
        if (!f->late)
            return (nvmlReturn_t)f->error;
        *late = (nvmlReturn_t)f->error;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t call_begin(call_t *c, const char *name, int mode, const char *args, ...) {
    *c = (call_t){.name = name, .mode = mode, .api = true};
    va_list ap;
    va_start(ap, args);
    vsnprintf(c->args, sizeof c->args, args, ap);
    va_end(ap);
    sim_lock_process();
    if (!sim)
        return NVML_ERROR_UNINITIALIZED;
    take_lock(read_only ? READ : mode);
    nvmlReturn_t r = injected_fault(name, &c->late);
    c->s = mode == WRITE && !read_only ? working_copy() : &sim->slots[sim->active & 1];
    c->contained = strncmp(name, "nvml", 4) == 0 && nodes_from_container(c->s);
    if (r == NVML_SUCCESS && strncmp(name, "simctl.", 7) != 0 && (!c->s->driver_present || !sees_driver(c)))
        r = NVML_ERROR_DRIVER_NOT_LOADED;
    if (r == NVML_SUCCESS && mode == WRITE && read_only)
        r = NVML_ERROR_NO_PERMISSION;
    return r;
}

void call_result(call_t *c, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(c->result, sizeof c->result, format, ap);
    va_end(ap);
}

static size_t make_record(char *out, size_t size, const call_t *c, nvmlReturn_t r, unsigned long long mutation) {
    char number[24] = "null";
    if (mutation)
        snprintf(number, sizeof number, "%llu", mutation);
    unsigned long long seq = __atomic_add_fetch(&sim->seq, 1, __ATOMIC_ACQ_REL);
    int n = snprintf(out, size,
                     "{\"seq\": %llu, \"pid\": %d, \"call\": \"%s\", \"args\": {%s}, \"result\": \"%s\", "
                     "\"out\": {%s}, \"mutation\": %s}\n",
                     seq, (int)getpid(), c->name, c->args, error_name(r), c->result, number);
    return n > 0 && (size_t)n < size ? (size_t)n : 0;
}

/* Counts down to the change at which a test wants the process dead. */
static bool dies_now(const call_t *c, bool before) {
    if (!c->api || sim->kill_at == 0 || (sim->kill_before != 0) != before)
        return false;
    return --sim->kill_at == 0;
}

static void commit(call_t *c, nvmlReturn_t r) {
    if (dies_now(c, true))
        kill(getpid(), SIGKILL);
    slot_t *s = c->s;
    s->commit++;
    if (c->api)
        s->mutation++;
    s->record_len = (unsigned int)make_record(s->record, sizeof s->record, c, r, c->api ? s->mutation : 0);
    __atomic_store_n(&sim->active, !(sim->active & 1), __ATOMIC_RELEASE);
    if (dies_now(c, false))
        kill(getpid(), SIGKILL);
    nodes_follow(s);
    if (sim->log_on)
        write_all(s->record, s->record_len);
    sim->logged = s->commit;
}

nvmlReturn_t call_end(call_t *c, nvmlReturn_t r) {
    if (!sim) {
        sim_unlock_process();
        return r;
    }
    nvmlReturn_t said = r == NVML_SUCCESS ? c->late : r;
    if (c->mode == WRITE && c->changed && r == NVML_SUCCESS) {
        commit(c, said);
    } else if (sim->log_on && !c->quiet && !read_only) {
        char record[RECORD_LEN];
        write_all(record, make_record(record, sizeof record, c, said, 0));
    }
    lock_file(F_UNLCK);
    sim_unlock_process();
    return said;
}

nvmlReturn_t sim_log_clear(void) {
    return ftruncate(log_fd, 0) == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}
