/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* Small helpers: text, names of errors, name-based UUIDs. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void copy_text(char *out, size_t size, const char *in) {
    size_t n = strlen(in);
    if (n >= size)
        n = size - 1;
    memcpy(out, in, n);
    out[n] = '\0';
}

void text_add(text_t *t, const char *format, ...) {
    va_list ap;
    for (;;) {
        size_t room = t->cap - t->len;
        va_start(ap, format);
        int n = vsnprintf(t->data ? t->data + t->len : NULL, room, format, ap);
        va_end(ap);
        if (n < 0)
            return;
        if ((size_t)n < room) {
            t->len += (size_t)n;
            return;
        }
        size_t cap = (t->cap + (size_t)n + 1) * 2;
        char *data = realloc(t->data, cap);
        if (!data)
            return;
        t->data = data;
        t->cap = cap;
    }
}

void json_escape(const char *in, char *out, size_t size) {
    size_t n = 0;
    for (; *in && n + 7 < size; in++) {
        unsigned char ch = (unsigned char)*in;
        if (ch == '"' || ch == '\\') {
            out[n++] = '\\';
            out[n++] = (char)ch;
        } else if (ch < 0x20) {
            n += (size_t)snprintf(out + n, size - n, "\\u%04x", ch);
        } else {
            out[n++] = (char)ch;
        }
    }
    out[n] = '\0';
}

void text_json(text_t *t, const char *value) {
    char safe[1024];
    json_escape(value, safe, sizeof safe);
    text_add(t, "\"%s\"", safe);
}

typedef struct {
    nvmlReturn_t code;
    const char *name, *text;
} error_t_;

static const error_t_ errors[] = {
    {NVML_SUCCESS, "SUCCESS", "Success"},
    {NVML_ERROR_UNINITIALIZED, "UNINITIALIZED", "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "INVALID_ARGUMENT", "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "NOT_SUPPORTED", "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "NO_PERMISSION", "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "ALREADY_INITIALIZED", "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "NOT_FOUND", "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "INSUFFICIENT_SIZE", "Insufficient Size"},
    {NVML_ERROR_INSUFFICIENT_POWER, "INSUFFICIENT_POWER", "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "DRIVER_NOT_LOADED", "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "TIMEOUT", "Timeout"},
    {NVML_ERROR_IRQ_ISSUE, "IRQ_ISSUE", "Interrupt Request Issue"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "LIBRARY_NOT_FOUND", "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "FUNCTION_NOT_FOUND", "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "CORRUPTED_INFOROM", "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU_IS_LOST", "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "RESET_REQUIRED", "GPU requires restart"},
    {NVML_ERROR_OPERATING_SYSTEM, "OPERATING_SYSTEM", "The operating system has blocked the request."},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "LIB_RM_VERSION_MISMATCH", "RM has detected an NVML/RM version mismatch."},
    {NVML_ERROR_IN_USE, "IN_USE", "In use by another client"},
    {NVML_ERROR_MEMORY, "MEMORY", "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "NO_DATA", "No data"},
    {NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "VGPU_ECC_NOT_SUPPORTED", "vGPU does not support ECC"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "INSUFFICIENT_RESOURCES", "Insufficient Resources"},
    {NVML_ERROR_FREQ_NOT_SUPPORTED, "FREQ_NOT_SUPPORTED", "Requested frequency is not supported"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "ARGUMENT_VERSION_MISMATCH", "Argument version mismatch"},
    {NVML_ERROR_DEPRECATED, "DEPRECATED", "Function is deprecated"},
    {NVML_ERROR_NOT_READY, "NOT_READY", "System is not ready"},
    {NVML_ERROR_GPU_NOT_FOUND, "GPU_NOT_FOUND", "No GPUs were found"},
    {NVML_ERROR_INVALID_STATE, "INVALID_STATE", "Resource is not in the right state"},
    {NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, "RESET_TYPE_NOT_SUPPORTED", "Reset type is not supported"},
    {NVML_ERROR_UNKNOWN, "UNKNOWN", "Unknown Error"},
};
enum { NERRORS = sizeof errors / sizeof *errors };

const char *error_name(nvmlReturn_t code) {
    for (int i = 0; i < NERRORS; i++)
        if (errors[i].code == code)
            return errors[i].name;
    return "UNKNOWN";
}

int error_by_name(const char *name) {
    static const char prefix[] = "NVML_ERROR_";
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        name += sizeof prefix - 1;
    for (int i = 0; i < NERRORS; i++)
        if (strcmp(errors[i].name, name) == 0)
            return (int)errors[i].code;
    return -1;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code) {
    for (int i = 0; i < NERRORS; i++)
        if (errors[i].code == code)
            return errors[i].text;
    return "Unknown Error";
}

unsigned long long hash_text(const char *text, unsigned long long start) {
    unsigned long long h = 0xcbf29ce484222325ull ^ start;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3ull;
    h ^= h >> 30;
    h *= 0xbf58476d1ce4e5b9ull;
    h ^= h >> 27;
    h *= 0x94d049bb133111ebull;
    return h ^ (h >> 31);
}

/* A name-based UUID: same seed, same UUID. It carries version 5 like the MIG UUIDs seen on real boards; the digest
 * behind it is our own, since nobody can check it against the driver's secret name. */
void make_uuid(const char *seed, char *out, size_t size) {
    unsigned long long a = hash_text(seed, 1), b = hash_text(seed, 2);
    snprintf(out, size, "%08llx-%04llx-5%03llx-%04llx-%012llx", a >> 32, (a >> 16) & 0xffff, a & 0xfff,
             0x8000 | ((b >> 48) & 0x3fff), b & 0xffffffffffffull);
}
