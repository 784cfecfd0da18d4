package etcd

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"gitopsd.dev/render/manifest"
)

// Version is the version of EtcdNamespace.
const Version = "v1alpha1"

// Declaration is an EtcdNamespace as it is declared.
type Declaration struct {
	Namespace, Name string
	// Prefix is the prefix of its keys in etcd, and ends with "/"; empty for
	// [ID.DefaultPrefix].
	Prefix   string
	Quota    Quota
	Throttle Throttle
	// Certificates are the client certificates to write to Secrets.
	Certificates []Certificate
	// CAConfigMaps are the names of the ConfigMaps to write the CA to.
	CAConfigMaps []string
	// Delete reports whether the keys are deleted with the declaration.
	Delete bool
	// Origin is the origin of the EtcdNamespace.
	Origin manifest.Origin
}

// Certificate is a client certificate.
type Certificate struct {
	// Secret is the name of its Secret.
	Secret string
	// Validity is how long it is valid. It is renewed in time.
	Validity time.Duration
}

// The validity of client certificates.
const (
	DefaultValidity = 90 * 24 * time.Hour
	MinValidity     = 10 * time.Second
	MaxValidity     = 366 * 24 * time.Hour
)

const (
	// maxName leaves room for the Service's name, a DNS label.
	maxName = 63 - len(suffix)
	// maxPrefix bounds a prefix, which is part of every key.
	maxPrefix = 256
	// maxCertificates and maxConfigMaps bound the lists of a declaration.
	maxCertificates = 20
	maxConfigMaps   = 20
)

var (
	labelName = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	dnsName   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	prefix    = regexp.MustCompile(`^(/[-A-Za-z0-9_.]+)+/?$`)
)

// Of returns the identity of the declaration in a cluster.
func (d *Declaration) Of(cluster string) ID {
	return ID{Cluster: cluster, Namespace: d.Namespace, Name: d.Name}
}

// Object returns the ID of the EtcdNamespace.
func (d *Declaration) Object() manifest.ID {
	return manifest.EtcdNamespace.ID(d.Namespace, d.Name)
}

// Read reads an EtcdNamespace strictly. The error joins an error for each invalid field,
// and does not name the object. The Declaration is returned even with an error.
func Read(o *manifest.Object) (*Declaration, error) {
	id := o.ID()
	d := &Declaration{Namespace: id.Namespace, Name: id.Name, Origin: o.Origin()}
	var errs []error
	if o.Version() != Version {
		errs = append(errs, fmt.Errorf("apiVersion: %s is not known; write %s", o.APIVersion(), manifest.EtcdNamespace.APIVersion(Version)))
	}
	switch {
	case id.Namespace == "":
		errs = append(errs, errors.New("metadata.namespace: is missing; name the namespace of the API server that the keys are for"))
	case !labelName.MatchString(id.Name) || len(id.Name) > maxName:
		errs = append(errs, fmt.Errorf("metadata.name: the proxy's Service is named %s%s, so that the name must have at most %d lower-case letters, digits and '-', and begin with a letter", id.Name, suffix, maxName))
	}
	document := decoder{fields: o.Tree(), errs: &errs}
	document.known("apiVersion", "kind", "metadata", "spec", "status")
	if o.Tree()["spec"] == nil {
		return d, errors.Join(errs...)
	}
	spec := document.mapping("spec")
	spec.known("prefix", "quota", "throttle", "clientCertificates", "caConfigMaps", "deletion")
	d.Prefix = spec.prefix("prefix")
	quota := spec.mapping("quota")
	quota.known("storage", "keys", "writeBytesPerSecond")
	d.Quota = Quota{Storage: quota.bytes("storage"), Keys: quota.number("keys"), WriteBytesPerSecond: quota.bytes("writeBytesPerSecond")}
	throttle := spec.mapping("throttle")
	throttle.known("requestsPerSecond", "concurrent", "watches", "weight")
	d.Throttle = Throttle{
		RequestsPerSecond: throttle.number("requestsPerSecond"), Concurrent: throttle.number("concurrent"),
		Watches: throttle.number("watches"), Weight: throttle.number("weight"),
	}
	d.readCertificates(spec)
	d.readConfigMaps(spec)
	d.Delete = spec.oneOf("deletion", "Retain", "Delete") == "Delete"
	return d, errors.Join(errs...)
}

func (d *Declaration) readCertificates(spec decoder) {
	taken := []string{ProxySecret(d.Name)}
	for _, c := range spec.list("clientCertificates", maxCertificates) {
		c.known("secretRef", "validity")
		ref := c.mapping("secretRef")
		ref.known("name")
		name := ref.name("name")
		if slices.Contains(taken, name) && name != "" {
			ref.fail("name", "Secret %s has something else already; name another", name)
		}
		taken = append(taken, name)
		d.Certificates = append(d.Certificates, Certificate{Secret: name, Validity: c.validity("validity")})
	}
}

func (d *Declaration) readConfigMaps(spec decoder) {
	for _, c := range spec.list("caConfigMaps", maxConfigMaps) {
		c.known("name")
		name := c.name("name")
		if slices.Contains(d.CAConfigMaps, name) && name != "" {
			c.fail("name", "ConfigMap %s is in the list already", name)
		}
		d.CAConfigMaps = append(d.CAConfigMaps, name)
	}
}
