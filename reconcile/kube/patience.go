package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// A request without an answer says little about the cluster: a webhook or an aggregated
// API server may be slow. If /livez answers then, the request's object or kind is to
// blame. What is slow for one object is often slow for its whole kind, so each request for
// the kind gets half the time of the one before, until one is answered.

// livenessTimeout is how long /livez may take.
const livenessTimeout = 5 * time.Second

// leastPatience is the shortest time limit of a request.
const leastPatience = time.Second

// lane is the requests of one verb for the objects of one kind.
type lane struct{ verb, group, kind string }

func laneOf(op operation) lane { return lane{op.verb, op.id.Group, op.id.Kind} }

// strikes returns how many requests in a row failed in the operation's lane since the
// last Refresh.
func (c *Client) strikes(op operation) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lanes[laneOf(op)]
}

// note counts a strike, or ends the row.
func (c *Client) note(op operation, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch ClassOf(err) {
	case Unanswered, Throttled:
		c.lanes[laneOf(op)]++
	case Unreachable, Canceled, Fenced:
	default:
		delete(c.lanes, laneOf(op))
	}
}

// patience returns the time limit of the next request in a lane with so many strikes.
func (c *Client) patience(strikes int) time.Duration {
	return max(c.timeout>>min(strikes, 10), min(leastPatience, c.timeout))
}

// noAnswer classifies the error of a request without an answer. limit is the time limit
// of the request. It asks /livez whether the API server is to blame.
func (c *Client) noAnswer(ctx context.Context, op operation, limit time.Duration, err error) *Error {
	e := c.transportError(ctx, op, limit, err)
	if dial, ok := errors.AsType[*net.OpError](err); e.Class != Unreachable || ok && dial.Op == "dial" || !c.alive(ctx) {
		return e
	}
	e.Class = Unanswered
	if errors.Is(err, context.DeadlineExceeded) {
		e.Message = fmt.Sprintf("no answer within %s, though the API server answers others; is a webhook or an API server behind it slow?", limit)
	} else {
		e.Message = fmt.Sprintf("the connection broke, though the API server answers others: %v", e.cause)
	}
	return e
}

// alive reports whether the API server answers /livez with anything but a server
// error, which may come from a load balancer in front of it. A refusal is an answer.
func (c *Client) alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, min(livenessTimeout, c.timeout))
	defer cancel()
	u, err := c.url(operation{verb: "get"}, []string{"livez"}, nil)
	if err != nil {
		return false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return false
	}
	req.Header.Set("User-Agent", c.userAgent)
	resp, err := c.client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBytes))
	return err == nil && resp.StatusCode < http.StatusInternalServerError
}
