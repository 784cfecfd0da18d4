package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"sigs.k8s.io/yaml"
)

// convertedSide is a type with or without a conversion webhook.
type convertedSide struct {
	converted
	by      string        // the webhook; empty for none
	process serverProcess // the webhook's
	host    string
	client  *http.Client
	// fields are the fields of an object in v2 except apiVersion, kind and metadata, as
	// JSON without braces.
	fields  string
	written atomic.Int64
}

// convertRequest sends one request in v2. Several workers call it at once.
type convertRequest func(s *convertedSide, ctx context.Context, worker int) error

// convertRequests are the requests by the name of their benchmark.
var convertRequests = []struct {
	name string
	send convertRequest
}{
	{"convert-get", (*convertedSide).get},
	{"convert-create", (*convertedSide).create},
	{"convert-apply", (*convertedSide).apply},
}

// read is the name of the object that get reads.
const read = "payments"

func (s *convertedSide) get(ctx context.Context, _ int) error {
	_, err := s.request(ctx, http.MethodGet, s.url("v2", read), "", nil)
	return err
}

// create creates a new object.
func (s *convertedSide) create(ctx context.Context, _ int) error {
	n := s.written.Add(1)
	_, err := s.request(ctx, http.MethodPost, s.url("v2", ""), "application/json", s.body("v2", fmt.Sprintf("created-%d", n), n, s.fields))
	return err
}

// apply applies a change to the worker's object, which the first apply creates.
func (s *convertedSide) apply(ctx context.Context, worker int) error {
	name := fmt.Sprintf("applied-%d", worker)
	_, err := s.request(ctx, http.MethodPatch, s.url("v2", name)+"?fieldManager=bench", "application/apply-patch+yaml", s.body("v2", name, s.written.Add(1), s.fields))
	return err
}

// url returns the URL of an object, or of all objects if name is empty.
func (s *convertedSide) url(version, name string) string {
	return strings.TrimSuffix(fmt.Sprintf("%s/apis/%s/%s/namespaces/default/%s/%s", s.host, s.group, version, s.plural, name), "/")
}

// body returns an object; each value of change makes a different one.
func (s *convertedSide) body(version, name string, change int64, fields string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"%s/%s","kind":"%s","metadata":{"name":"%s","labels":{"change":"%d","team":"payments"}},%s}`,
		s.group, version, s.kind, name, change, fields)
}

// request sends a request, and returns the body of a successful response.
func (s *convertedSide) request(ctx context.Context, method, url, contentType string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	response, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, url, response.Status, text)
	}
	return text, err
}

// start creates the definition and the object that get reads, waits until the object is
// served in v2, and sends each kind of request once.
func (s *convertedSide) start(ctx context.Context, conversion string) error {
	definition, err := yaml.YAMLToJSON([]byte(s.definition(conversion)))
	if err != nil {
		return err
	}
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	if _, err := s.request(ctx, http.MethodPost, s.host+definitions, "application/json", definition); err != nil {
		return err
	}
	if err := s.served(ctx); err != nil {
		return err
	}
	if s.fields, err = s.fieldsOf(ctx, "v2", read); err != nil {
		return err
	}
	for _, kind := range convertRequests {
		if err := kind.send(s, ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

// served creates the object in v1 as soon as the API server accepts it, and waits until it
// can be read in v2.
func (s *convertedSide) served(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, convertLimit)
	defer cancel()
	for {
		err := s.get(ctx, 0)
		if err == nil {
			return nil
		}
		_, refused := s.request(ctx, http.MethodPost, s.url("v1", ""), "application/json", s.body("v1", read, 0, s.object))
		select {
		case <-ctx.Done():
			return errors.Join(err, refused)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// fieldsOf returns an object's fields in the form of [convertedSide.fields].
func (s *convertedSide) fieldsOf(ctx context.Context, version, name string) (string, error) {
	text, err := s.request(ctx, http.MethodGet, s.url(version, name), "", nil)
	if err != nil {
		return "", err
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return "", err
	}
	for _, own := range []string{"apiVersion", "kind", "metadata"} {
		delete(object, own)
	}
	// The API server sorts the fields of all objects inside.
	text, err = json.Marshal(object)
	return strings.TrimSuffix(strings.TrimPrefix(string(text), "{"), "}"), err
}

// sameAnswers returns an error unless two sides serve the same objects: one written in v1
// and one in v2, each read in both versions, without annotations, which would be more to
// convert.
func sameAnswers(ctx context.Context, a, b *convertedSide) error {
	for _, name := range []string{read, "applied-0"} {
		for _, version := range []string{"v1", "v2"} {
			one, err := a.fieldsOf(ctx, version, name)
			if err != nil {
				return err
			}
			other, err := b.fieldsOf(ctx, version, name)
			if err != nil {
				return err
			}
			if one != other || len(one) < 500 {
				return fmt.Errorf("%s differs in %s:\n%s\n%s", name, version, one, other)
			}
			for _, s := range []*convertedSide{a, b} {
				if err := s.withoutAnnotations(ctx, version, name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// withoutAnnotations returns an error if an object has annotations.
func (s *convertedSide) withoutAnnotations(ctx context.Context, version, name string) error {
	text, err := s.request(ctx, http.MethodGet, s.url(version, name), "", nil)
	if err != nil {
		return err
	}
	var object struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal(text, &object); err != nil {
		return err
	}
	if n := len(object.Metadata.Annotations); n > 0 {
		return fmt.Errorf("%s has %d annotations in %s", s.url(version, name), n, version)
	}
	return nil
}
