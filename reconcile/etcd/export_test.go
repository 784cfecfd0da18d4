package etcd

import "google.golang.org/grpc"

// Intercept has a function called around each request.
func (c *Config) Intercept(f grpc.UnaryClientInterceptor) {
	c.intercept = append(c.intercept, f)
}
