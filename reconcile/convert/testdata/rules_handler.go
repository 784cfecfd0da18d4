package conversion

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rulesHandler is the handler of conversion rules, in the place of a test's own. It runs
// in the process that runs this test, which is asked at GITOPSD_RULES for its address.
func rulesHandler(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) http.Handler {
	crd = crd.DeepCopy()
	crd.TypeMeta = metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}
	text, err := json.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	// Idle connections have goroutines, which a test may count at its end.
	transport := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: transport}
	response, err := client.Post(os.Getenv("GITOPSD_RULES"), "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	address, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", response.Status, address, err)
	}
	target, err := url.Parse(string(address))
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL = target }}
}
