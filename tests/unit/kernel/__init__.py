# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel as a tree of files: ``tree`` lays devices out below a root, and stand-ins in ``bin`` do what a write makes the kernel do.

A test puts ``bin`` first in PATH and names the root in KERNEL_TREE (``Tree.environment``). What is there besides sysfs and procfs (which
drivers exist, what a card is) lies in ``kernel.json``, and every write that reached the kernel is a line of ``writes``. The traps are
those of real kernels that this project met:

- ``drivers_probe`` answers success though nothing binds; ``bind`` says EINVAL. Without an IOMMU nothing binds to vfio-pci.
- an override that is not set reads ``(null)``, an empty line clears it, and it neither unbinds nor loads a module
- an unbind waits for whoever has the device open, and reading the override waits with it (a FIFO stands for the lock)
- who holds a device without a process (``held`` in ``kernel.json``) keeps an unbind waiting all the same
- the number of virtual functions changes only through 0 (EBUSY), and with autoprobe on a driver takes them at once

KERNEL_FAIL (``3``, ``3,4`` or ``3=No such device``), KERNEL_HANG (``3``) and KERNEL_KILL (``before 3``, ``after 3``) concern the
third write from the beginning of ``writes``: it is refused, it waits until the file ``go`` is made in the root, or the writer's parent
is killed.
"""
