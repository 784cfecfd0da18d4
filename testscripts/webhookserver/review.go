package webhookserver

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxBody bounds a request. An AdmissionReview has an object twice, and an API server
// takes objects of up to 3 MiB.
const maxBody = 8 << 20

// rules are what the server answers.
type rules struct {
	// deny has values of fields, by their steps with zero bytes between them.
	deny        map[string]string
	annotations [][2]string
	// renames are fields of the first version, and what they are in the second one.
	renames  [][2]string
	versions [2]string
}

// counts are the numbers of answers, by path and result, and of requests that have none
// yet.
type counts struct {
	mu      sync.Mutex
	by      map[[2]string]int
	pending int
}

func newCounts() *counts { return &counts{by: make(map[[2]string]int)} }

func (c *counts) add(path, result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[[2]string{path, result}]++
}

// begin counts a request that has no answer until end is called.
func (c *counts) begin() (end func()) {
	change := func(by int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pending += by
	}
	change(1)
	return func() { change(-1) }
}

// write writes the numbers in Prometheus' text format, sorted.
func (c *counts) write(w io.Writer) error {
	c.mu.Lock()
	by, pending := maps.Clone(c.by), c.pending
	c.mu.Unlock()
	var lines []string
	for key, n := range by {
		lines = append(lines, fmt.Sprintf("webhookserver_requests_total{path=%q,result=%q} %d\n", key[0], key[1], n))
	}
	slices.Sort(lines)
	lines = append([]string{fmt.Sprintf("webhookserver_requests_pending %d\n", pending)}, lines...)
	_, err := io.WriteString(w, strings.Join(lines, ""))
	return err
}

func handler(o options, counts *counts) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_ = counts.write(w) // the client is gone
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		defer counts.begin()()
		var answer func(body []byte) (reply any, result string, err error)
		switch {
		case r.URL.Path == "/convert":
			answer = o.rules.convert
		case strings.HasPrefix(r.URL.Path, "/validate-"):
			answer = o.rules.admission(o.rules.validate)
		case strings.HasPrefix(r.URL.Path, "/mutate-"):
			answer = o.rules.admission(o.rules.mutate)
		default:
			http.NotFound(w, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			counts.add(r.URL.Path, "unreadable")
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		reply, result, err := answer(body)
		if err != nil {
			counts.add(r.URL.Path, "invalid")
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		time.Sleep(o.delay)
		counts.add(r.URL.Path, result)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(reply) // the client is gone
	})
	return mux
}

// admission answers AdmissionReviews by a function of the object.
func (r rules) admission(judge func(object map[string]any, response *admissionv1.AdmissionResponse) (result string, err error)) func(body []byte) (any, string, error) {
	return func(body []byte) (any, string, error) {
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &review); err != nil {
			return nil, "", fmt.Errorf("not an AdmissionReview: %w", err)
		}
		if review.Request == nil {
			return nil, "", fmt.Errorf("the AdmissionReview has no request")
		}
		response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		raw := review.Request.Object.Raw
		if len(raw) == 0 {
			raw = review.Request.OldObject.Raw // deleted
		}
		var object map[string]any
		if len(raw) > 0 {
			if err := decode(raw, &object); err != nil {
				return nil, "", fmt.Errorf("the object of the AdmissionReview: %w", err)
			}
		}
		result, err := judge(object, response)
		if err != nil {
			return nil, "", err
		}
		return &admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response}, result, nil
	}
}

func (r rules) validate(object map[string]any, response *admissionv1.AdmissionResponse) (string, error) {
	for _, path := range slices.Sorted(maps.Keys(r.deny)) {
		steps := strings.Split(path, "\x00")
		v, ok := get(object, steps)
		if !ok || fmt.Sprint(v) != r.deny[path] {
			continue
		}
		response.Allowed = false
		response.Result = &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Message: fmt.Sprintf("webhookserver denies %s=%s", strings.Join(steps, "."), r.deny[path]),
		}
		return "denied", nil
	}
	return "allowed", nil
}

// mutate answers with a JSON patch (RFC 6902) that sets the annotations.
func (r rules) mutate(object map[string]any, response *admissionv1.AdmissionResponse) (string, error) {
	if len(r.annotations) == 0 || object == nil {
		return "unchanged", nil
	}
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var patch []operation
	if annotations, ok := get(object, []string{"metadata", "annotations"}); !ok || annotations == nil {
		patch = append(patch, operation{"add", "/metadata/annotations", map[string]string{}})
	}
	for _, a := range r.annotations {
		patch = append(patch, operation{"add", "/metadata/annotations/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(a[0]), a[1]})
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return "", err
	}
	kind := admissionv1.PatchTypeJSONPatch
	response.Patch, response.PatchType = text, &kind
	return "mutated", nil
}

// convert answers ConversionReviews.
func (r rules) convert(body []byte) (any, string, error) {
	var review apiextensionsv1.ConversionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, "", fmt.Errorf("not a ConversionReview: %w", err)
	}
	if review.Request == nil {
		return nil, "", fmt.Errorf("the ConversionReview has no request")
	}
	response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	reply := &apiextensionsv1.ConversionReview{TypeMeta: review.TypeMeta, Response: response}
	for _, o := range review.Request.Objects {
		converted, err := r.convertObject(o.Raw, review.Request.DesiredAPIVersion)
		if err != nil {
			response.ConvertedObjects = nil
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			return reply, "failed", nil
		}
		o.Raw = converted
		response.ConvertedObjects = append(response.ConvertedObjects, o)
	}
	return reply, "converted", nil
}
