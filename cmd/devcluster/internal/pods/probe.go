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

// eager is how often a container is probed that is not ready, whatever its probe's
// period: on one machine that is cheap, and tests wait for it.
const eager = 200 * time.Millisecond

// watchReadiness calls set with whether the container is ready, each time that
// changes, until ctx ends. At first it is not. Without a probe that can be made
// here it is at once.
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

// checkOf returns one attempt of the readiness probe, nil without one.
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

// targetOf returns the host and port that a probe goes to.
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

// probeClient checks no certificate, as a kubelet does not, and follows no
// redirect: a redirect is a success.
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
