/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* What simctl and nvidia-smi ask of the library beside NVML: one exported function, words in, text out. */
#ifndef SIM_CONTROL_H
#define SIM_CONTROL_H

#include "sim.h"

bool control_create(const char *dir, const char *text, text_t *answer);
void control_dump(const call_t *c, text_t *answer);

#endif
