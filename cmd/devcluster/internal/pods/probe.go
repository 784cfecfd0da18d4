package pods

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// eager is the period of probes of a container that is not ready, instead of its probe's
// own: probes are cheap on one machine, and tests wait for them.
const eager = 200 * time.Millisecond

// watchReadiness calls set whenever the readiness of the container changes, until ctx
// ends. At first the container is not ready. Without a supported probe it becomes ready at
// once.
func watchReadiness(ctx context.Context, c *corev1.Container, address netip.Addr, set func(bool)) {
	check := checkOf(c, address)
	if check == nil {
		set(true)
		return
	}
	p := c.ReadinessProbe
	pause := time.Duration(p.InitialDelaySeconds) * time.Second
	ready, successes, failures := false, int32(0), int32(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		attempt, cancel := context.WithTimeout(ctx, time.Duration(max(p.TimeoutSeconds, 1))*time.Second)
		err := check(attempt)
		cancel()
		if err == nil {
			successes, failures = successes+1, 0
		} else {
			successes, failures = 0, failures+1
		}
		switch {
		case ctx.Err() != nil:
			return
		case !ready && successes >= max(p.SuccessThreshold, 1):
			ready = true
			set(true)
		case ready && failures >= max(p.FailureThreshold, 1):
			ready = false
			set(false)
		}
		pause = eager
		if ready && failures == 0 {
			pause = time.Duration(max(p.PeriodSeconds, 1)) * time.Second
		}
	}
}

// checkOf returns a function that probes the container once, or nil without a supported
// probe.
func checkOf(c *corev1.Container, address netip.Addr) func(context.Context) error {
	p := c.ReadinessProbe
	switch {
	case p == nil:
		return nil
	case p.HTTPGet != nil:
		return func(ctx context.Context) error { return httpGet(ctx, c, p.HTTPGet, address) }
	case p.TCPSocket != nil:
		return func(ctx context.Context) error {
			target, err := targetOf(c, p.TCPSocket.Host, p.TCPSocket.Port, address)
			if err != nil {
				return err
			}
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
			if err != nil {
				return err
			}
			return conn.Close()
		}
	}
	return nil
}

// targetOf returns the host and port of a probe.
func targetOf(c *corev1.Container, host string, port intstr.IntOrString, address netip.Addr) (string, error) {
	if host == "" {
		host = address.String()
	}
	number := port.IntValue()
	if port.Type == intstr.String {
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
	}
	if number <= 0 || number > 65535 {
		return "", fmt.Errorf("container %s has no port %s", c.Name, port.String())
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

// probeClient verifies no certificates, like a kubelet, and follows no redirects: a redirect
// is a success.
var probeClient = &http.Client{
	Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func httpGet(ctx context.Context, c *corev1.Container, get *corev1.HTTPGetAction, address netip.Addr) error {
	target, err := targetOf(c, get.Host, get.Port, address)
	if err != nil {
		return err
	}
	url := "http://" + target + get.Path
	if get.Scheme == corev1.URISchemeHTTPS {
		url = "https://" + target + get.Path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "kube-probe/devcluster")
	for _, h := range get.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			req.Host = h.Value
		} else {
			req.Header.Add(h.Name, h.Value)
		}
	}
	resp, err := probeClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}
