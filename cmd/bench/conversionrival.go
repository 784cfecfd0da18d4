package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/conversion"
)

// conversionWebhook returns controller-runtime's handler of ConversionReviews for moved and
// mixed, with types and conversions as the author of a controller writes them.
func conversionWebhook(group string) http.Handler {
	ctrl.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	for version, types := range map[string][]runtime.Object{"v1": {&workerV1{}, &serviceV1{}}, "v2": {&workerV2{}, &serviceV2{}}} {
		for i, kind := range []string{moved.kind, mixed.kind} {
			scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: group, Version: version, Kind: kind}, types[i])
		}
	}
	return webhook.NewWebhookHandler(scheme, webhook.NewRegistry())
}

type (
	workerV1 struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata,omitempty"`
		Spec              workerSpecV1    `json:"spec,omitempty"`
		Status            convertedStates `json:"status,omitempty"`
	}
	workerSpecV1 struct {
		Replicas     int64             `json:"replicas,omitempty"`
		Owner        string            `json:"owner,omitempty"`
		Contact      string            `json:"contact,omitempty"`
		LogLevel     string            `json:"logLevel,omitempty"`
		MetricsPort  int64             `json:"metricsPort,omitempty"`
		NodeSelector map[string]string `json:"nodeSelector,omitempty"`
		Tolerations  []toleration      `json:"tolerations,omitempty"`
		Containers   []containerV1     `json:"containers,omitempty"`
	}
	containerV1 struct {
		Name  string   `json:"name,omitempty"`
		Image string   `json:"image,omitempty"`
		CPU   string   `json:"cpu,omitempty"`
		Mem   string   `json:"mem,omitempty"`
		Args  []string `json:"args,omitempty"`
		Env   []envV1  `json:"env,omitempty"`
	}
	envV1 struct {
		Name  string `json:"name,omitempty"`
		Value string `json:"value,omitempty"`
	}
	toleration struct {
		Effect   string `json:"effect,omitempty"`
		Key      string `json:"key,omitempty"`
		Operator string `json:"operator,omitempty"`
		Value    string `json:"value,omitempty"`
	}
	convertedStates struct {
		ObservedGeneration int64             `json:"observedGeneration,omitempty"`
		Conditions         []convertedIsTrue `json:"conditions,omitempty"`
	}
	convertedIsTrue struct {
		LastTransitionTime string `json:"lastTransitionTime,omitempty"`
		Message            string `json:"message,omitempty"`
		Reason             string `json:"reason,omitempty"`
		Status             string `json:"status,omitempty"`
		Type               string `json:"type,omitempty"`
	}

	workerV2 struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata,omitempty"`
		Spec              workerSpecV2    `json:"spec,omitempty"`
		Status            convertedStates `json:"status,omitempty"`
	}
	workerSpecV2 struct {
		Replicas      int64          `json:"replicas,omitempty"`
		Team          *team          `json:"team,omitempty"`
		Observability *observability `json:"observability,omitempty"`
		Placement     *placement     `json:"placement,omitempty"`
		Workers       []containerV2  `json:"workers,omitempty"`
	}
	team struct {
		Name    string `json:"name,omitempty"`
		Contact string `json:"contact,omitempty"`
	}
	observability struct {
		Logging *logging `json:"logging,omitempty"`
		Metrics *metrics `json:"metrics,omitempty"`
	}
	logging struct {
		Level string `json:"level,omitempty"`
	}
	metrics struct {
		Port int64 `json:"port,omitempty"`
	}
	placement struct {
		NodeSelector map[string]string `json:"nodeSelector,omitempty"`
		Tolerations  []toleration      `json:"tolerations,omitempty"`
	}
	containerV2 struct {
		Name        string   `json:"name,omitempty"`
		Image       string   `json:"image,omitempty"`
		CPULimit    string   `json:"cpuLimit,omitempty"`
		MemoryLimit string   `json:"memoryLimit,omitempty"`
		Args        []string `json:"args,omitempty"`
		Env         []envV2  `json:"env,omitempty"`
	}
	envV2 struct {
		Key   string `json:"key,omitempty"`
		Value string `json:"value,omitempty"`
	}

	serviceV1 struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata,omitempty"`
		Spec              serviceSpecV1   `json:"spec,omitempty"`
		Status            convertedStates `json:"status,omitempty"`
	}
	serviceSpecV1 struct {
		Replicas     int64             `json:"replicas,omitempty"`
		Owner        string            `json:"owner,omitempty"`
		Contact      string            `json:"contact,omitempty"`
		NodeSelector map[string]string `json:"nodeSelector,omitempty"`
		Timeout      string            `json:"timeout,omitempty"`
		Interval     string            `json:"interval,omitempty"`
		Host         string            `json:"host,omitempty"`
		Port         int64             `json:"port,omitempty"`
		Mode         string            `json:"mode,omitempty"`
		Paused       *bool             `json:"paused,omitempty"`
		Hosts        []string          `json:"hosts,omitempty"`
		Tolerations  []toleration      `json:"tolerations,omitempty"`
		Routes       []routeV1         `json:"routes,omitempty"`
	}
	routeV1 struct {
		Path    string `json:"path,omitempty"`
		Backend string `json:"backend,omitempty"`
		Weight  int64  `json:"weight,omitempty"`
	}

	serviceV2 struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata,omitempty"`
		Spec              serviceSpecV2   `json:"spec,omitempty"`
		Status            convertedStates `json:"status,omitempty"`
	}
	serviceSpecV2 struct {
		Replicas        int64        `json:"replicas,omitempty"`
		Team            *team        `json:"team,omitempty"`
		Placement       *placement   `json:"placement,omitempty"`
		TimeoutSeconds  *int64       `json:"timeoutSeconds,omitempty"`
		IntervalSeconds *int64       `json:"intervalSeconds,omitempty"`
		Address         string       `json:"address,omitempty"`
		Speed           string       `json:"speed,omitempty"`
		State           string       `json:"state,omitempty"`
		Domains         []domain     `json:"domains,omitempty"`
		Summary         string       `json:"summary,omitempty"`
		Tolerations     []toleration `json:"tolerations,omitempty"`
		Routes          []routeV2    `json:"routes,omitempty"`
	}
	domain struct {
		Name string `json:"name,omitempty"`
	}
	routeV2 struct {
		Match  string `json:"match,omitempty"`
		Target string `json:"target,omitempty"`
		Weight int64  `json:"weight,omitempty"`
	}
)

func (*workerV2) Hub()  {}
func (*serviceV2) Hub() {}

// ConvertTo converts to v2, which is the hub.
func (w *workerV1) ConvertTo(hub conversion.Hub) error {
	to, from := hub.(*workerV2), &w.Spec
	to.ObjectMeta, to.Status = w.ObjectMeta, w.Status
	to.Spec.Replicas = from.Replicas
	if from.Owner != "" || from.Contact != "" {
		to.Spec.Team = &team{from.Owner, from.Contact}
	}
	if from.LogLevel != "" || from.MetricsPort != 0 {
		to.Spec.Observability = &observability{}
	}
	if from.LogLevel != "" {
		to.Spec.Observability.Logging = &logging{from.LogLevel}
	}
	if from.MetricsPort != 0 {
		to.Spec.Observability.Metrics = &metrics{from.MetricsPort}
	}
	if from.NodeSelector != nil || from.Tolerations != nil {
		to.Spec.Placement = &placement{from.NodeSelector, from.Tolerations}
	}
	for _, c := range from.Containers {
		worker := containerV2{Name: c.Name, Image: c.Image, CPULimit: c.CPU, MemoryLimit: c.Mem, Args: c.Args}
		for _, e := range c.Env {
			worker.Env = append(worker.Env, envV2{e.Name, e.Value})
		}
		to.Spec.Workers = append(to.Spec.Workers, worker)
	}
	return nil
}

// ConvertFrom converts from v2.
func (w *workerV1) ConvertFrom(hub conversion.Hub) error {
	from, to := hub.(*workerV2), &w.Spec
	w.ObjectMeta, w.Status = from.ObjectMeta, from.Status
	to.Replicas = from.Spec.Replicas
	if t := from.Spec.Team; t != nil {
		to.Owner, to.Contact = t.Name, t.Contact
	}
	if o := from.Spec.Observability; o != nil {
		if o.Logging != nil {
			to.LogLevel = o.Logging.Level
		}
		if o.Metrics != nil {
			to.MetricsPort = o.Metrics.Port
		}
	}
	if p := from.Spec.Placement; p != nil {
		to.NodeSelector, to.Tolerations = p.NodeSelector, p.Tolerations
	}
	for _, worker := range from.Spec.Workers {
		c := containerV1{Name: worker.Name, Image: worker.Image, CPU: worker.CPULimit, Mem: worker.MemoryLimit, Args: worker.Args}
		for _, e := range worker.Env {
			c.Env = append(c.Env, envV1{e.Key, e.Value})
		}
		to.Containers = append(to.Containers, c)
	}
	return nil
}

// ConvertTo converts to v2, which is the hub.
func (s *serviceV1) ConvertTo(hub conversion.Hub) error {
	to, from := hub.(*serviceV2), &s.Spec
	to.ObjectMeta, to.Status = s.ObjectMeta, s.Status
	to.Spec.Replicas, to.Spec.Tolerations = from.Replicas, from.Tolerations
	if from.Owner != "" || from.Contact != "" {
		to.Spec.Team = &team{from.Owner, from.Contact}
	}
	if from.NodeSelector != nil {
		to.Spec.Placement = &placement{NodeSelector: from.NodeSelector}
	}
	var err error
	if to.Spec.TimeoutSeconds, err = seconds(from.Timeout); err != nil {
		return err
	}
	if to.Spec.IntervalSeconds, err = seconds(from.Interval); err != nil {
		return err
	}
	if from.Host != "" {
		to.Spec.Address = net.JoinHostPort(from.Host, strconv.FormatInt(from.Port, 10))
	}
	switch from.Mode {
	case "":
	case "Quick":
		to.Spec.Speed = "fast"
	case "Careful":
		to.Spec.Speed = "slow"
	default:
		return fmt.Errorf("spec.mode: %s is not known", from.Mode)
	}
	if from.Paused != nil {
		to.Spec.State = map[bool]string{true: "Paused", false: "Running"}[*from.Paused]
	}
	for _, host := range from.Hosts {
		to.Spec.Domains = append(to.Spec.Domains, domain{host})
	}
	for _, r := range from.Routes {
		to.Spec.Routes = append(to.Spec.Routes, routeV2{r.Path, r.Backend, r.Weight})
	}
	return nil
}

// ConvertFrom is not measured.
func (s *serviceV1) ConvertFrom(conversion.Hub) error { return errors.New("not implemented") }

func seconds(text string) (*int64, error) {
	if text == "" {
		return nil, nil
	}
	d, err := time.ParseDuration(text)
	n := int64(d / time.Second)
	return &n, err
}

// The copies are shallow, since nothing copies the objects.

func (w *workerV1) DeepCopyObject() runtime.Object  { c := *w; return &c }
func (w *workerV2) DeepCopyObject() runtime.Object  { c := *w; return &c }
func (s *serviceV1) DeepCopyObject() runtime.Object { c := *s; return &c }
func (s *serviceV2) DeepCopyObject() runtime.Object { c := *s; return &c }
