// SPDX-License-Identifier: GPL-2.0-or-later
// Copyright (c) 2026, gpuops.fleet contributors
/*
 * The lab's: virtual functions of an emulated network card show the files of NVIDIA's vendor-specific vGPU framework.
 *
 * What public sources say of that framework, on a real sysfs: types are numbers that differ from driver to driver (first_id), the list of
 * what can be made shrinks as vGPUs are made, one size at a time is on a card, and nothing can be written while somebody has the function
 * open. That is a real VFIO device, so whoever opens it is a real holder. There is no GPU.
 */
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/vfio_pci_core.h>

#define CARD_GB 80
#define PARAMS 256

static int first_id = 500;
module_param(first_id, int, 0444);
MODULE_PARM_DESC(first_id, "number of the first type");

static const struct {
	const char *name;
	int gb;
} kinds[] = {
	{ "NVIDIA A100D-10C", 10 },
	{ "NVIDIA A100D-16C", 16 },
	{ "NVIDIA A100D-20C", 20 },
	{ "NVIDIA A100D-40C", 40 },
	{ "NVIDIA A100D-80C", 80 },
};

struct lab_vf {
	struct vfio_pci_core_device core;
	struct list_head list;
	int kind;		/* of kinds; -1 for none */
	bool open;
	char params[PARAMS];
};

static LIST_HEAD(functions);
static DEFINE_MUTEX(lock);

static struct lab_vf *of(struct device *dev)
{
	return container_of(dev_get_drvdata(dev), struct lab_vf, core);
}

/* Whether the card has room for one more of this kind: one size at a time, and no more than it has. */
static bool room(struct lab_vf *vf, int kind)
{
	struct lab_vf *other;
	int used = 0;

	list_for_each_entry(other, &functions, list) {
		if (other->kind < 0 || pci_physfn(other->core.pdev) != pci_physfn(vf->core.pdev))
			continue;
		if (other->kind != kind)
			return false;
		used += kinds[kind].gb;
	}
	return used + kinds[kind].gb <= CARD_GB;
}

static ssize_t creatable_vgpu_types_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct lab_vf *vf = of(dev);
	int kind, at = 0;

	mutex_lock(&lock);
	for (kind = 0; vf->kind < 0 && kind < ARRAY_SIZE(kinds); kind++)
		if (room(vf, kind))
			at += sysfs_emit_at(buf, at, "%d : %s\n", first_id + kind, kinds[kind].name);
	mutex_unlock(&lock);
	return at;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t current_vgpu_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct lab_vf *vf = of(dev);

	return sysfs_emit(buf, "%d\n", vf->kind < 0 ? 0 : first_id + vf->kind);
}

static ssize_t current_vgpu_type_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	struct lab_vf *vf = of(dev);
	int id, kind, err;

	err = kstrtoint(buf, 0, &id);
	if (err)
		return err;
	kind = id - first_id;
	mutex_lock(&lock);
	if (vf->open) {
		err = -EBUSY;
	} else if (!id) {
		vf->kind = -1;
		vf->params[0] = 0;
	} else if (kind < 0 || kind >= ARRAY_SIZE(kinds)) {
		err = -EINVAL;
	} else if (vf->kind >= 0) {
		err = -EEXIST;
	} else if (!room(vf, kind)) {
		err = -ENOSPC;
	} else {
		vf->kind = kind;
	}
	mutex_unlock(&lock);
	return err ? err : count;
}
static DEVICE_ATTR_RW(current_vgpu_type);

static ssize_t vgpu_params_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", of(dev)->params);
}

static ssize_t vgpu_params_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	struct lab_vf *vf = of(dev);
	int err = 0;

	if (count >= PARAMS)
		return -EINVAL;
	mutex_lock(&lock);
	if (vf->open || vf->kind < 0) {
		err = -EBUSY;
	} else {
		memcpy(vf->params, buf, count);
		vf->params[count] = 0;
		memmove(vf->params, strim(vf->params), strlen(strim(vf->params)) + 1);
	}
	mutex_unlock(&lock);
	return err ? err : count;
}
static DEVICE_ATTR_RW(vgpu_params);

static ssize_t gpu_instance_id_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "0xffffffff\n");
}
static DEVICE_ATTR_RO(gpu_instance_id);

static ssize_t placement_id_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "0xffff\n");
}
static DEVICE_ATTR_RO(placement_id);

static struct attribute *attributes[] = {
	&dev_attr_creatable_vgpu_types.attr,
	&dev_attr_current_vgpu_type.attr,
	&dev_attr_vgpu_params.attr,
	&dev_attr_gpu_instance_id.attr,
	&dev_attr_placement_id.attr,
	NULL,
};
static const struct attribute_group group = { .name = "nvidia", .attrs = attributes };
static const struct attribute_group *groups[] = { &group, NULL };

static int lab_open(struct vfio_device *device)
{
	struct vfio_pci_core_device *core = container_of(device, struct vfio_pci_core_device, vdev);
	struct lab_vf *vf = container_of(core, struct lab_vf, core);
	int err;

	mutex_lock(&lock);
	err = vf->kind < 0 ? -ENODEV : vfio_pci_core_enable(core);
	if (!err) {
		vfio_pci_core_finish_enable(core);
		vf->open = true;
	}
	mutex_unlock(&lock);
	return err;
}

static void lab_close(struct vfio_device *device)
{
	struct vfio_pci_core_device *core = container_of(device, struct vfio_pci_core_device, vdev);

	vfio_pci_core_close_device(device);
	mutex_lock(&lock);
	container_of(core, struct lab_vf, core)->open = false;
	mutex_unlock(&lock);
}

static const struct vfio_device_ops operations = {
	.name = "labvgpu",
	.init = vfio_pci_core_init_dev,
	.release = vfio_pci_core_release_dev,
	.open_device = lab_open,
	.close_device = lab_close,
	.ioctl = vfio_pci_core_ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
	.bind_iommufd = vfio_iommufd_physical_bind,
	.unbind_iommufd = vfio_iommufd_physical_unbind,
	.attach_ioas = vfio_iommufd_physical_attach_ioas,
	.detach_ioas = vfio_iommufd_physical_detach_ioas,
};

static int lab_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct lab_vf *vf;
	int err;

	vf = vfio_alloc_device(lab_vf, core.vdev, &pdev->dev, &operations);
	if (IS_ERR(vf))
		return PTR_ERR(vf);
	vf->kind = -1;
	dev_set_drvdata(&pdev->dev, &vf->core);
	err = vfio_pci_core_register_device(&vf->core);
	if (err) {
		vfio_put_device(&vf->core.vdev);
		return err;
	}
	mutex_lock(&lock);
	list_add_tail(&vf->list, &functions);
	mutex_unlock(&lock);
	return 0;
}

static void lab_remove(struct pci_dev *pdev)
{
	struct lab_vf *vf = of(&pdev->dev);

	mutex_lock(&lock);
	list_del(&vf->list);
	mutex_unlock(&lock);
	vfio_pci_core_unregister_device(&vf->core);
	vfio_put_device(&vf->core.vdev);
}

/* Virtual functions of igb come to it only by driver_override: igbvf is the kernel's own driver of theirs. */
static const struct pci_device_id ids[] = {
	{ PCI_DRIVER_OVERRIDE_DEVICE_VFIO(PCI_VENDOR_ID_INTEL, 0x10ca) },
	{ }
};

static struct pci_driver labvgpu = {
	.name = "labvgpu",
	.id_table = ids,
	.probe = lab_probe,
	.remove = lab_remove,
	.dev_groups = groups,
	.err_handler = &vfio_pci_core_err_handlers,
	.driver_managed_dma = true,
};
module_pci_driver(labvgpu);

MODULE_DESCRIPTION("files of a vendor's vGPU framework on virtual functions of igb");
MODULE_LICENSE("GPL");
