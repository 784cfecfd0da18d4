package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answering is a cluster with an API server that gives the answers.
func answering(t *testing.T, answer func(*http.Request) (code int, body io.Reader)) *Client {
	t.Helper()
	c, err := New(Config{Name: "prod", Kubeconfig: []byte(fleetFile), WrapTransport: func(http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if err := r.Context().Err(); err != nil {
				return nil, err
			}
			code, body := answer(r)
			if body == nil {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			resp := &http.Response{StatusCode: code, Request: r, Header: make(http.Header), Body: io.NopCloser(body), ContentLength: -1}
			if body == tooMuch {
				resp.ContentLength = maxPageBytes + 1
			}
			return resp, nil
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tooMuch is a page that is larger than it may be, and says so.
var tooMuch = strings.NewReader("")

func protobufList(t *testing.T, list *metav1.PartialObjectMetadataList) string {
	t.Helper()
	raw, err := list.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, Raw: raw}
	wire, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(protobufMagic) + string(wire)
}

// endless is a byte for ever.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	return copy(p, bytes.Repeat([]byte{byte(e)}, len(p))), nil
}

// A cluster that answers without end costs an error, and not the memory.
func TestHostileLists(t *testing.T) {
	t.Parallel()
	many := make(map[string]string)
	for i := range maxMetadataFields {
		many[fmt.Sprint(i)] = ""
	}
	heavy := func(m metav1.ObjectMeta) *metav1.PartialObjectMetadataList {
		return &metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{{ObjectMeta: m}}}
	}
	pages := 0
	for _, tt := range []struct {
		name   string
		answer func(r *http.Request) io.Reader
		want   string
	}{
		{"the same page for ever", func(*http.Request) io.Reader {
			return strings.NewReader(`{"kind":"ServiceList","metadata":{"continue":"x"},"items":[{}]}`)
		}, "the list does not end"},
		{"pages without end", func(*http.Request) io.Reader {
			pages++
			return strings.NewReader(fmt.Sprintf(`{"kind":"ServiceList","metadata":{"continue":"%d"}}`, pages))
		}, "the list does not end"},
		{"a page without end", func(*http.Request) io.Reader { return endless(' ') }, "it is larger than 32 MiB"},
		{"too many values", func(*http.Request) io.Reader {
			return io.MultiReader(strings.NewReader(`{"items":[0`), strings.NewReader(strings.Repeat(",0", maxValues)), strings.NewReader("]}"))
		}, "it has more than 2000000 values"},
		{"heavy metadata", func(*http.Request) io.Reader {
			return strings.NewReader(protobufList(t, heavy(metav1.ObjectMeta{Annotations: map[string]string{"a": strings.Repeat("x", maxMetadataBytes)}})))
		}, "the metadata of an object is larger than 2 MiB"},
		{"many fields", func(*http.Request) io.Reader {
			return strings.NewReader(protobufList(t, heavy(metav1.ObjectMeta{Labels: many, Name: "a"})))
		},
			"the metadata of an object has more than 20000 fields"},
		{"cut off", func(*http.Request) io.Reader {
			whole := protobufList(t, heavy(metav1.ObjectMeta{Name: "a"}))
			return strings.NewReader(whole[:len(whole)-3])
		}, "it is no protobuf message"},
	} {
		c := answering(t, func(r *http.Request) (int, io.Reader) { return http.StatusOK, tt.answer(r) })
		_, err := c.List(t.Context(), services, ListOptions{Page: 1}, func(*metav1.PartialObjectMetadata) bool { return true })
		if ClassOf(err) != Server || !strings.Contains(err.Error(), "list service: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.want)
		}
	}

	// An answer that is no list does not read as a list without objects.
	for _, body := range []string{`{}`, `{"metadata":{},"items":[]}`, `{"kind":"Status","status":"Failure"}`, `[]`, ``, string(protobufMagic)} {
		c := answering(t, func(*http.Request) (int, io.Reader) { return http.StatusOK, strings.NewReader(body) })
		if _, err := c.List(t.Context(), services, ListOptions{}, func(*metav1.PartialObjectMetadata) bool { return true }); ClassOf(err) != Server {
			t.Errorf("a list that is %q: error %v", body, err)
		}
		if err := c.ListFull(t.Context(), services, ListOptions{}, func(map[string]any) bool { return true }); ClassOf(err) != Server {
			t.Errorf("a list of whole objects that is %q: error %v", body, err)
		}
	}

	c := answering(t, func(*http.Request) (int, io.Reader) { return http.StatusInternalServerError, endless('x') })
	if _, err := c.Version(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "the server answered 500 Internal Server Error") {
		t.Errorf("an error without end: %v", err)
	}
	long := `{"kind":"Status","message":"` + strings.Repeat("x", 10*maxMessage) + `"}`
	c = answering(t, func(*http.Request) (int, io.Reader) { return http.StatusInternalServerError, strings.NewReader(long) })
	if _, err := c.Version(t.Context()); err == nil || len(err.Error()) > 2*maxMessage {
		t.Errorf("a long error: %v", err)
	}
	c = answering(t, func(*http.Request) (int, io.Reader) { return http.StatusOK, endless('x') })
	if err := c.Watch(t.Context(), services, "", "", "1", func(Event) {}); err == nil || !strings.Contains(err.Error(), "an event is larger than 4 MiB") {
		t.Errorf("an event without end: %v", err)
	}
}

// A list with large pages is read in smaller ones.
func TestLargePages(t *testing.T) {
	t.Parallel()
	want := []metav1.PartialObjectMetadata{
		{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n", Generation: 3, Labels: map[string]string{"x": "y"}, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0))}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}},
	}
	var limits []string
	c := answering(t, func(r *http.Request) (int, io.Reader) {
		limits = append(limits, r.URL.Query().Get("limit"))
		switch {
		case len(limits) < 3:
			return http.StatusOK, tooMuch
		case r.URL.Query().Get("continue") == "":
			left := int64(1)
			return http.StatusOK, strings.NewReader(protobufList(t, &metav1.PartialObjectMetadataList{
				ListMeta: metav1.ListMeta{Continue: "next", ResourceVersion: "7", RemainingItemCount: &left}, Items: want[:1]}))
		}
		return http.StatusOK, strings.NewReader(protobufList(t, &metav1.PartialObjectMetadataList{
			ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: want[1:]}))
	})
	var have []metav1.PartialObjectMetadata
	version, err := c.List(t.Context(), services, ListOptions{}, func(m *metav1.PartialObjectMetadata) bool {
		m.CreationTimestamp = metav1.NewTime(m.CreationTimestamp.Time.Local())
		have = append(have, *m)
		return true
	})
	if err != nil || version != "7" || len(have) != 2 || have[0].Name != "a" || have[0].Generation != 3 || !reflect.DeepEqual(have[0].Labels, want[0].Labels) || have[1].ManagedFields[0].Manager != "m" {
		t.Errorf("have %+v at %s, %v", have, version, err)
	}
	if fmt.Sprint(limits) != "[500 50 5 5]" {
		t.Errorf("pages of %v", limits)
	}
}

// A watch that brings nothing for long is given up.
func TestQuietWatch(t *testing.T) {
	t.Parallel()
	blocked, unblock := io.Pipe()
	defer unblock.Close()
	c := answering(t, func(r *http.Request) (int, io.Reader) {
		context.AfterFunc(r.Context(), func() { unblock.CloseWithError(r.Context().Err()) })
		return http.StatusOK, blocked
	})
	c.quiet = 10 * time.Millisecond
	if err := c.Watch(t.Context(), services, "", "", "1", func(Event) {}); ClassOf(err) != Expired || !strings.Contains(err.Error(), "watch service: the API server sent nothing for 10ms") {
		t.Errorf("a quiet watch: %v", err)
	}
}

// A kind that was slow gets less time, until it answers or a pass begins.
func TestPatience(t *testing.T) {
	t.Parallel()
	slow := true
	var had []time.Duration
	c := answering(t, func(r *http.Request) (int, io.Reader) {
		if r.URL.Path == "/livez" {
			return http.StatusForbidden, strings.NewReader("")
		}
		deadline, _ := r.Context().Deadline()
		had = append(had, time.Until(deadline))
		if slow {
			return 0, nil
		}
		return http.StatusOK, strings.NewReader("{}")
	})
	c.timeout = 40 * time.Millisecond
	ask := func() error {
		_, err := c.GetMetadata(t.Context(), services, aService)
		return err
	}
	for range 2 {
		if err := ask(); ClassOf(err) != Unanswered || IsClusterWide(err) {
			t.Errorf("a slow object: %v", err)
		}
	}
	if n := c.strikes(operation{"get", aService}); n != 2 {
		t.Errorf("%d strikes", n)
	}
	c.timeout = time.Minute
	slow = false
	for range 2 {
		if err := ask(); err != nil {
			t.Error(err)
		}
	}
	if had[2] > 15*time.Second || had[3] < 15*time.Second {
		t.Errorf("after two strikes %v, after an answer %v", had[2], had[3])
	}
}
