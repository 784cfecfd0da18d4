package render

import (
	"fmt"
	"slices"

	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// withEtcd adds the definition of EtcdNamespace and the proxies to the plain objects, if
// these have EtcdNamespaces. It refuses objects that gitopsd writes for these. An EtcdNamespace with errors is not rendered, and stays
// unchanged in the cluster, with its proxy.
func (c *cluster) withEtcd() error {
	var plain []*manifest.Object
	named := make(map[manifest.ID]manifest.ID) // written Secrets and ConfigMaps -> their EtcdNamespace
	for _, o := range c.plain {
		meant, misspelled := etcd.Misspelled(o.ID().GroupKind())
		switch {
		case misspelled:
			c.refuse(o, fmt.Errorf("kind: %s is not known; did you mean %s?", o.ID().Kind, meant.Kind))
			continue
		case !o.ID().Is(manifest.EtcdNamespace):
			plain = append(plain, o)
			continue
		}
		c.etcd = true
		made, err := c.proxy(o, named)
		if err != nil {
			c.refuse(o, err)
			continue
		}
		plain = append(append(plain, o), made...)
	}
	plain = slices.DeleteFunc(plain, func(o *manifest.Object) bool {
		of, written := named[o.ID()]
		if written {
			c.refuse(o, fmt.Errorf("gitopsd writes it for %s; rename the object, or remove it from the manifests", of))
		}
		return written
	})
	if c.etcd {
		// Even if all have errors, since those in the cluster stay.
		var err error
		if plain, err = etcd.AddDefinition(plain); err != nil {
			return err
		}
	}
	c.plain = plain
	return nil
}

// proxy returns the objects beside an EtcdNamespace.
func (c *cluster) proxy(o *manifest.Object, named map[manifest.ID]manifest.ID) ([]*manifest.Object, error) {
	d, err := etcd.Read(o)
	if err == nil && c.input.Etcd.Image == "" && c.input.Etcd.URL == "" {
		err = fmt.Errorf("it needs a proxy: set spec.etcd of the Cluster, to proxy: {image: <image of gitopsd>} for one in the cluster, or to proxy: {url: https://<where the cluster reaches the daemon>}")
	}
	for _, id := range d.Writes() {
		if other, taken := named[id]; taken && err == nil {
			err = fmt.Errorf("%s is written for %s already; name another", id, other)
		}
		named[id] = o.ID()
	}
	if err != nil {
		c.beside = append(c.beside, d.Beside()...)
		return nil, err
	}
	return etcd.Objects(d, c.input.Etcd)
}
