package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// serverVariable makes this test binary the server of a pod.
const serverVariable = "DEVCLUSTER_TEST_SERVER"

// runServer serves HTTPS on the pod's address, like controllers of packages, with the
// certificate in TLS_SERVER_CERTS_DIR: an admission webhook that denies objects named
// "denied", and an aggregated API. It returns an exit status.
func runServer() int {
	if reason := os.Getenv("FAIL"); reason != "" {
		fmt.Println("cannot go on:", reason)
		return 3
	}
	dir := os.Getenv("TLS_SERVER_CERTS_DIR")
	mux := http.NewServeMux()
	mux.HandleFunc("/validate", validate)
	// The pod's environment, arguments and files.
	mux.HandleFunc("/env/{name}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, os.Getenv(r.PathValue("name"))) })
	mux.HandleFunc("/args", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "%q", os.Args[1:]) })
	mux.HandleFunc("/file/{name}", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join(dir, filepath.Base(r.PathValue("name"))))
	})
	// The user name of the pod's service account, from the API server.
	mux.HandleFunc("/whoami", whoami)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(filepath.Join(dir, "not-ready")); err == nil {
			http.Error(w, "the Secret says no", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/apis/echo.example/v1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"},
			GroupVersion: "echo.example/v1",
			APIResources: []metav1.APIResource{{Name: "echoes", SingularName: "echo", Kind: "Echo", Verbs: metav1.Verbs{"get"}}},
		})
	})
	mux.HandleFunc("/apis/echo.example/v1/echoes/{name}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"echo.example/v1","kind":"Echo","metadata":{"name":%q},"user":%q}`, r.PathValue("name"), r.Header.Get("X-Remote-User"))
	})
	server := http.Server{
		Addr:    net.JoinHostPort(os.Getenv("POD_IP"), "9443"),
		Handler: mux,
		TLSConfig: &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
			return &cert, err
		}},
	}
	fmt.Println("serving on", server.Addr)
	fmt.Println(server.ListenAndServeTLS("", ""))
	return 1
}

func validate(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "denied"}
	if !review.Response.Allowed {
		review.Response.Result = &metav1.Status{Message: "not with this name"}
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(review)
}

func whoami(w http.ResponseWriter, r *http.Request) {
	user, err := func() (string, error) {
		config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
		if err != nil {
			return "", err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return "", err
		}
		_, err = client.CoreV1().Secrets(namespace).List(r.Context(), metav1.ListOptions{})
		return fmt.Sprint(err), nil
	}()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, user)
}
