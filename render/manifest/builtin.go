package manifest

import (
	"slices"
	"strings"
)

// resource is a kind that Kubernetes defines, with the names that kubectl accepts for it
// (`kubectl api-resources`).
type resource struct {
	GroupKind
	plural string
	short  []string
}

// resources are the kinds that people write manifests of. The first one of a name wins.
var resources = []resource{
	{ConfigMap, "configmaps", []string{"cm"}},
	{GroupKind{Kind: "Endpoints"}, "endpoints", []string{"ep"}},
	{GroupKind{Kind: "LimitRange"}, "limitranges", []string{"limits"}},
	{Namespace, "namespaces", []string{"ns"}},
	{GroupKind{Kind: "PersistentVolumeClaim"}, "persistentvolumeclaims", []string{"pvc"}},
	{GroupKind{Kind: "PersistentVolume"}, "persistentvolumes", []string{"pv"}},
	{Pod, "pods", []string{"po"}},
	{GroupKind{Kind: "ReplicationController"}, "replicationcontrollers", []string{"rc"}},
	{GroupKind{Kind: "ResourceQuota"}, "resourcequotas", []string{"quota"}},
	{Secret, "secrets", nil},
	{ServiceAccount, "serviceaccounts", []string{"sa"}},
	{Service, "services", []string{"svc"}},
	{ValidatingWebhooks, "validatingwebhookconfigurations", nil},
	{MutatingWebhooks, "mutatingwebhookconfigurations", nil},
	{ValidatingPolicy, "validatingadmissionpolicies", nil},
	{ValidatingPolicyBinding, "validatingadmissionpolicybindings", nil},
	{MutatingPolicy, "mutatingadmissionpolicies", nil},
	{MutatingPolicyBinding, "mutatingadmissionpolicybindings", nil},
	{CRD, "customresourcedefinitions", []string{"crd", "crds"}},
	{APIService, "apiservices", nil},
	{DaemonSet, "daemonsets", []string{"ds"}},
	{Deployment, "deployments", []string{"deploy"}},
	{ReplicaSet, "replicasets", []string{"rs"}},
	{StatefulSet, "statefulsets", []string{"sts"}},
	{GroupKind{"autoscaling", "HorizontalPodAutoscaler"}, "horizontalpodautoscalers", []string{"hpa"}},
	{CronJob, "cronjobs", []string{"cj"}},
	{Job, "jobs", nil},
	{GroupKind{GroupCertificates, "CertificateSigningRequest"}, "certificatesigningrequests", []string{"csr"}},
	{GroupKind{GroupNetworking, "Ingress"}, "ingresses", []string{"ing"}},
	{GroupKind{GroupNetworking, "IngressClass"}, "ingressclasses", nil},
	{GroupKind{GroupNetworking, "NetworkPolicy"}, "networkpolicies", []string{"netpol"}},
	{DisruptionBudget, "poddisruptionbudgets", []string{"pdb"}},
	{ClusterRole, "clusterroles", nil},
	{ClusterRoleBinding, "clusterrolebindings", nil},
	{Role, "roles", nil},
	{RoleBinding, "rolebindings", nil},
	{GroupKind{GroupScheduling, "PriorityClass"}, "priorityclasses", []string{"pc"}},
	{GroupKind{GroupStorage, "StorageClass"}, "storageclasses", []string{"sc"}},
	{GroupKind{GroupStorage, "CSIDriver"}, "csidrivers", nil},
}

// BuiltInKind returns the built-in kind with a name, plural or short name, in any case, as
// kubectl accepts them: "Deployment", "deployments", "deploy".
func BuiltInKind(name string) (GroupKind, bool) {
	name = strings.ToLower(name)
	for _, r := range resources {
		if name == strings.ToLower(r.Kind) || name == r.plural || slices.Contains(r.short, name) {
			return r.GroupKind, true
		}
	}
	return GroupKind{}, false
}

// BuiltInKinds yields the built-in kinds that people write manifests of.
func BuiltInKinds(yield func(GroupKind) bool) {
	for _, r := range resources {
		if !yield(r.GroupKind) {
			return
		}
	}
}
