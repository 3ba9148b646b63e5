/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* Events: a set belongs to one process, what happens to the GPUs is in the state, so every process sees it. */
#include "api.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_SETS = 64, POLL_MS = 10 };

typedef struct {
    bool used;
    unsigned long long seen; /* last event that this set has been told */
    unsigned long long types[MAX_GPUS];
} set_t;

static set_t sets[MAX_SETS];

static set_t *find_set(nvmlEventSet_t handle) {
    set_t *set = handle;
    for (int i = 0; i < MAX_SETS; i++)
        if (set == &sets[i] && set->used)
            return set;
    return NULL;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out) {
    OPEN(READ, "%s", "");
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS) {
        r = NVML_ERROR_MEMORY;
        for (int i = 0; i < MAX_SETS && r != NVML_SUCCESS; i++)
            if (!sets[i].used) {
                sets[i] = (set_t){.used = true, .seen = c.s->event_seq};
                *out = &sets[i];
                r = NVML_SUCCESS;
            }
    }
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle) {
    OPEN(READ, "%s", "");
    NEEDS(find_set(handle), NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        find_set(handle)->used = false;
    return call_end(&c, r);
}

static unsigned long long supported_events(const device_t *d) {
    return NVML_EVENT_XID | (d->b->ecc_supported ? 0x3ull : 0);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *out) {
    OPEN(READ, "%s", name_of(handle));
    DEVICE(handle, WHOLE_GPU);
    NEEDS(out, NVML_ERROR_INVALID_ARGUMENT);
    if (r == NVML_SUCCESS)
        *out = supported_events(&d);
    return call_end(&c, r);
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
    OPEN(READ, "%s, \"types\": %llu", name_of(handle), types);
    DEVICE(handle, WHOLE_GPU);
    NEEDS(find_set(set) && !(types & ~NVML_EVENT_KNOWN), NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(!(types & ~supported_events(&d)), NVML_ERROR_NOT_SUPPORTED);
    if (r == NVML_SUCCESS)
        find_set(set)->types[d.n] |= types;
    return call_end(&c, r);
}

/* The next event for this set; what is not registered is passed over. */
static bool next_event(const slot_t *s, set_t *set, nvmlEventData_t *out) {
    if (s->event_seq > MAX_EVENTS && set->seen < s->event_seq - MAX_EVENTS)
        set->seen = s->event_seq - MAX_EVENTS; /* the ring has run over: those are lost, as on a real host */
    while (set->seen < s->event_seq) {
        const event_t *e = &s->events[++set->seen % MAX_EVENTS];
        if (!(set->types[e->gpu] & e->type))
            continue;
        *out = (nvmlEventData_t){device_handle(e->gpu), e->type, e->data, e->gi < 0 ? NVML_NO_ID : (unsigned int)e->gi,
                                 e->ci < 0 ? NVML_NO_ID : (unsigned int)e->ci};
        return true;
    }
    return false;
}

static long long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits outside the call: the lock must not be held while nothing happens. */
static nvmlReturn_t wait_event(const char *name, nvmlEventSet_t handle, nvmlEventData_t *out, unsigned int timeout) {
    long long deadline = now_ms() + timeout;
    for (;;) {
        call_t c;
        nvmlReturn_t r = call_begin(&c, name, READ, "\"timeout\": %u", timeout);
        set_t *set = find_set(handle);
        NEEDS(set && out, NVML_ERROR_INVALID_ARGUMENT);
        bool last = now_ms() >= deadline;
        NEEDS(next_event(c.s, set, out), NVML_ERROR_TIMEOUT);
        c.quiet = r == NVML_ERROR_TIMEOUT && !last;
        if (r == NVML_SUCCESS)
            call_result(&c, "\"type\": %llu, \"data\": %llu", out->eventType, out->eventData);
        r = call_end(&c, r);
        if (r != NVML_ERROR_TIMEOUT || last)
            return r;
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000}, NULL);
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int timeout) {
    return wait_event(__func__, set, out, timeout);
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int timeout) {
    return wait_event(__func__, set, out, timeout);
}
