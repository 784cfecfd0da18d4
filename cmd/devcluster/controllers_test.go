package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// step creates an object in the collection at path, or patches the status at path.
type step struct{ path, body string }

func (s step) do(ctx context.Context, client kubernetes.Interface) error {
	rest := client.CoreV1().RESTClient()
	request := rest.Post()
	if strings.HasSuffix(s.path, "/status") {
		request = rest.Patch(types.MergePatchType)
	}
	return request.AbsPath(s.path).Body([]byte(s.body)).Do(ctx).Error()
}

// Paths of the namespace in which controllers are tested.
const (
	coreV1  = "/api/v1/namespaces/controllers/"
	appsV1  = "/apis/apps/v1/namespaces/controllers/"
	batchV1 = "/apis/batch/v1/namespaces/controllers/"

	pod    = `{"metadata":{"labels":{"app":"db"}},"spec":{"containers":[{"name":"c","image":"db"}]}}`
	jobPod = `{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"job"}]}}`
)

// testControllers tests that Kubernetes' controllers run which nothing else here needs.
func testControllers(t *testing.T, client kubernetes.Interface) {
	if err := (step{"/api/v1/namespaces", `{"metadata":{"name":"controllers"}}`}).do(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		steps []step
		get   string
		// want is in the JSON at get; if empty, there is nothing at get in the end.
		want string
	}{
		{name: "service accounts", get: coreV1 + "serviceaccounts/default", want: `"uid"`},
		{name: "CA", get: coreV1 + "configmaps/kube-root-ca.crt", want: "BEGIN CERTIFICATE"},
		{
			name: "tokens",
			steps: []step{{coreV1 + "secrets",
				`{"metadata":{"name":"token","annotations":{"kubernetes.io/service-account.name":"default"}},"type":"kubernetes.io/service-account-token"}`}},
			get:  coreV1 + "secrets/token",
			want: `"token":"`,
		},
		{
			name: "aggregated roles",
			steps: []step{
				{"/apis/rbac.authorization.k8s.io/v1/clusterroles",
					`{"metadata":{"name":"sum"},"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"part-of":"sum"}}]}}`},
				{"/apis/rbac.authorization.k8s.io/v1/clusterroles",
					`{"metadata":{"name":"part","labels":{"part-of":"sum"}},"rules":[{"apiGroups":["acme.example"],"resources":["widgets"],"verbs":["get"]}]}`},
			},
			get:  "/apis/rbac.authorization.k8s.io/v1/clusterroles/sum",
			want: `"widgets"`,
		},
		{
			name: "StatefulSet",
			steps: []step{{appsV1 + "statefulsets",
				`{"metadata":{"name":"db"},"spec":{"serviceName":"db","selector":{"matchLabels":{"app":"db"}},"template":` + pod + `}}`}},
			get:  appsV1 + "statefulsets/db",
			want: `"readyReplicas":1`,
		},
		{
			name: "PodDisruptionBudget",
			steps: []step{{"/apis/policy/v1/namespaces/controllers/poddisruptionbudgets",
				`{"metadata":{"name":"db"},"spec":{"maxUnavailable":1,"selector":{"matchLabels":{"app":"db"}}}}`}},
			get:  "/apis/policy/v1/namespaces/controllers/poddisruptionbudgets/db",
			want: `"disruptionsAllowed":1`,
		},
		{
			name:  "Endpoints",
			steps: []step{{coreV1 + "services", `{"metadata":{"name":"db"},"spec":{"selector":{"app":"db"},"ports":[{"port":80}]}}`}},
			get:   coreV1 + "endpoints/db",
			want:  `"name":"db-0"`,
		},
		{
			name: "mirrored Endpoints",
			steps: []step{
				{coreV1 + "services", `{"metadata":{"name":"afar"},"spec":{"ports":[{"port":80}]}}`},
				{coreV1 + "endpoints", `{"metadata":{"name":"afar"},"subsets":[{"addresses":[{"ip":"192.0.2.1"}],"ports":[{"port":80}]}]}`},
			},
			get:  "/apis/discovery.k8s.io/v1/namespaces/controllers/endpointslices",
			want: `"192.0.2.1"`,
		},
		{
			// Its last run was long ago, so that it need not wait for the next.
			name: "CronJob",
			steps: []step{
				{batchV1 + "cronjobs", `{"metadata":{"name":"yearly"},"spec":{"schedule":"0 0 1 1 *","jobTemplate":{"spec":{"template":` + jobPod + `}}}}`},
				{batchV1 + "cronjobs/yearly/status", `{"status":{"lastScheduleTime":"2020-01-01T00:00:00Z"}}`},
			},
			get:  batchV1 + "cronjobs/yearly",
			want: `"lastSuccessfulTime"`,
		},
		{
			name: "finished Job",
			steps: []step{{batchV1 + "jobs",
				`{"metadata":{"name":"brief"},"spec":{"ttlSecondsAfterFinished":0,"template":` + jobPod + `}}`}},
			get: batchV1 + "jobs/brief",
		},
		{
			name:  "quota",
			steps: []step{{coreV1 + "resourcequotas", `{"metadata":{"name":"few"},"spec":{"hard":{"pods":"5","configmaps":"5"}}}`}},
			get:   coreV1 + "resourcequotas/few",
			want:  `"used":{"configmaps":"1","pods":"`,
		},
		{
			name: "admission policy",
			steps: []step{{"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
				`{"metadata":{"name":"wrong"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["apps"],"apiVersions":["v1"],"operations":["CREATE"],` +
					`"resources":["deployments"]}]},"validations":[{"expression":"object.spec.replicas == 'many'"}]}}`}},
			get:  "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/wrong",
			want: `"expressionWarnings"`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, s := range tt.steps {
				if err := s.do(t.Context(), client); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, tt.get, func(ctx context.Context) error {
				got, err := client.CoreV1().RESTClient().Get().AbsPath(tt.get).SetHeader("Accept", "application/json").DoRaw(ctx)
				if tt.want == "" && apierrors.IsNotFound(err) {
					return nil
				}
				if err == nil && (tt.want == "" || !strings.Contains(string(got), tt.want)) {
					err = errors.New(string(got))
				}
				return err
			})
		})
	}
	t.Run("deleted namespace", func(t *testing.T) {
		namespaces := client.CoreV1().Namespaces()
		if err := namespaces.Delete(t.Context(), "controllers", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is gone", func(ctx context.Context) error {
			left, err := namespaces.Get(ctx, "controllers", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err == nil {
				err = errors.New(left.String())
			}
			return err
		})
	})
}
