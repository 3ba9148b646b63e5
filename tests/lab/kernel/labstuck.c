// SPDX-License-Identifier: GPL-2.0-or-later
// Copyright (c) 2026, gpuops.fleet contributors
/*
 * The lab's: a driver for QEMU's edu device that does not let go of it until it is told to (its parameter "release"), as a driver whose
 * device is in use. Whoever unbinds it waits in the kernel, and no signal ends that.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/pci.h>

static bool release;
module_param(release, bool, 0644);
MODULE_PARM_DESC(release, "let go of devices");

static int stuck_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	return 0;
}

static void stuck_remove(struct pci_dev *pdev)
{
	while (!READ_ONCE(release))
		msleep(100);
}

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },
	{ }
};

static struct pci_driver labstuck = {
	.name = "labstuck",
	.id_table = ids,
	.probe = stuck_probe,
	.remove = stuck_remove,
};
module_pci_driver(labstuck);

MODULE_DESCRIPTION("a driver that does not let go of its device");
MODULE_LICENSE("GPL");
