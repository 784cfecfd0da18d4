package health

import (
	"encoding/json"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Type has the parts of a definition that matter for the health of objects of one version: the
// printer columns that its author chose, and the schema of the status. It is immutable.
type Type struct{ known typeData }

// typeData is a type in JSON.
type typeData struct {
	Status  statusSchema `json:"status"`
	Finite  bool         `json:"finite,omitempty"`
	Columns []column     `json:"columns,omitempty"`
}

// MarshalJSON encodes the type for another process.
func (t *Type) MarshalJSON() ([]byte, error) { return json.Marshal(t.known) }

// UnmarshalJSON decodes the output of [Type.MarshalJSON].
func (t *Type) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &t.known) }

// statusSchema is a kind of schema of the status.
type statusSchema int

const (
	// noStatus: objects have none.
	noStatus statusSchema = iota
	// plainStatus: it has no field that could say anything about health.
	plainStatus
	// tellingStatus: it has such a field, or the schema does not list its fields.
	tellingStatus
)

// NewType reads a type from its CustomResourceDefinition or
// CompositeResourceDefinition. It returns nil if the definition has no such version.
func NewType(definition map[string]any, version string) *Type {
	d := types.Read(definition)
	for _, v := range d.Versions() {
		if v.Name != version {
			continue
		}
		if d.XRD {
			// Crossplane adds these columns.
			return &Type{typeData{Status: tellingStatus, Columns: []column{
				{Name: "SYNCED", Condition: "Synced"}, {Name: "READY", Condition: "Ready"},
			}}}
		}
		status := manifest.Mapping(v.Schema, "properties", "status")
		t := typeData{Status: readStatus(d, v)}
		for _, key := range endFields {
			t.Finite = t.Finite || manifest.Mapping(status, "properties", key) != nil
		}
		list, _ := v.Columns.([]any)
		for _, item := range list {
			if c, ok := readColumn(item); ok {
				t.Columns = append(t.Columns, c)
			}
		}
		return &Type{t}
	}
	return nil
}

// endFields are fields of a status with the time at which the work of an object ended. Such an
// object is not ready while it runs.
var endFields = []string{
	"completionTime", "completionTimestamp", "completedAt", "finishedAt", "finishTime", "finishedTime", "endTime", "terminationTime",
}

// preserves is set in a schema to keep unknown fields.
const preserves = "x-kubernetes-preserve-unknown-fields"

func readStatus(d types.Definition, v types.Version) statusSchema {
	schema := manifest.Mapping(v.Schema, "properties", "status")
	properties := manifest.Mapping(schema, "properties")
	switch {
	case schema == nil:
		return noStatus
	case len(properties) == 0 && schema["additionalProperties"] == nil && (d.PreservesUnknownFields || manifest.Truth(schema, preserves)),
		telling(properties, 1):
		return tellingStatus
	}
	return plainStatus
}

// telling reports whether a field of a status may say something about health. It also looks
// into fields if deeper is 1.
func telling(properties map[string]any, deeper int) bool {
	for name, schema := range properties {
		if name == "conditions" || isWordField(name) || isTruthField(name) || slices.Contains(readyCounts, name) {
			return true
		}
		s, _ := schema.(map[string]any)
		if deeper > 0 && manifest.Mapping(s, "properties", "conditions") != nil {
			return true
		}
		if items := manifest.Mapping(s, "items", "properties"); deeper > 0 && items["conditions"] != nil {
			return true
		}
		if nested := manifest.Mapping(s, "properties"); deeper > 0 && name == "health" && telling(nested, 0) {
			return true
		}
	}
	return false
}

// quiet are kinds that often have no status, or none about health. An empty kind stands for the
// whole group.
var quiet = []manifest.GroupKind{
	{Group: "networking.istio.io"}, {Group: "security.istio.io"}, {Group: "telemetry.istio.io"}, {Group: "extensions.istio.io"},
	{Group: "monitoring.coreos.com", Kind: "ServiceMonitor"}, {Group: "monitoring.coreos.com", Kind: "PodMonitor"},
	{Group: "monitoring.coreos.com", Kind: "Probe"}, {Group: "monitoring.coreos.com", Kind: "PrometheusRule"},
	{Group: "monitoring.coreos.com", Kind: "ScrapeConfig"}, {Group: "monitoring.coreos.com", Kind: "AlertmanagerConfig"},
	{Group: "argoproj.io", Kind: "AppProject"}, {Group: "argoproj.io", Kind: "CronWorkflow"}, {Group: "argoproj.io", Kind: "WorkflowTemplate"},
	{Group: "argoproj.io", Kind: "ClusterWorkflowTemplate"},
	{Group: "keda.sh", Kind: "TriggerAuthentication"}, {Group: "keda.sh", Kind: "ClusterTriggerAuthentication"},
	{Group: "notification.toolkit.fluxcd.io", Kind: "Alert"}, {Group: "notification.toolkit.fluxcd.io", Kind: manifest.Provider.Kind},
	{Group: "cilium.io", Kind: "CiliumNetworkPolicy"}, {Group: "cilium.io", Kind: "CiliumClusterwideNetworkPolicy"},
	{Group: "gateway.networking.k8s.io", Kind: "ReferenceGrant"},
	{Group: "projectcontour.io", Kind: "TLSCertificateDelegation"},
	{Group: "autoscaling.k8s.io", Kind: "VerticalPodAutoscalerCheckpoint"},
	{Group: "configuration.konghq.com"}, {Group: "traefik.io"}, {Group: "policy.linkerd.io"},
	{Group: "metallb.io"}, {Group: "elbv2.k8s.aws", Kind: "IngressClassParams"},
	manifest.ImageConfig, manifest.Composition,
	{Group: manifest.GroupComposites, Kind: "EnvironmentConfig"},
}

// isQuiet reports whether an object may never get a status.
func isQuiet(kind manifest.GroupKind, object map[string]any) bool {
	switch {
	case kind.Kind == "ProviderConfig" || kind.Kind == "ClusterProviderConfig" || kind.Kind == "ProviderConfigUsage":
		return true // Crossplane's providers count users there
	case kind.Group == "source.toolkit.fluxcd.io" && kind.Kind == "HelmRepository":
		return manifest.Text(object, "spec", "type") == "oci"
	}
	return slices.Contains(quiet, kind) || slices.Contains(quiet, manifest.GroupKind{Group: kind.Group})
}
