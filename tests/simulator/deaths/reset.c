/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* `nvidia-smi -r -i ADDRESS` and nothing else, in a millisecond: the stand-in in Python takes a hundred, and a crash matrix calls it
 * thousands of times. Exit codes as those of the stand-in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device);
int nvmlDeviceGetIndex(void *device, unsigned int *index);
const char *nvmlErrorString(int code);
int simControl(const char *dir, const char *caller, int argc, const char **argv, char **out);

int main(int argc, char **argv) {
    void *device;
    unsigned int index = 0;
    char number[16], *out = NULL;
    if (argc != 4 || strcmp(argv[1], "-r") != 0 || strcmp(argv[2], "-i") != 0)
        return 2;
    int code = nvmlInit_v2();
    if (code == 0) {
        code = nvmlDeviceGetHandleByPciBusId_v2(argv[3], &device);
        if (code == 0)
            code = nvmlDeviceGetIndex(device, &index);
        nvmlShutdown();
    }
    if (code == 0) {
        snprintf(number, sizeof number, "%u", index);
        const char *words[] = {"reset", number};
        code = simControl(getenv("NVML_SIM_STATE"), "nvidia-smi", 2, words, &out);
    }
    if (code != 0)
        fprintf(stderr, "%s: %s\n", argv[3], nvmlErrorString(code));
    return code == 0 ? 0 : 255;
}
