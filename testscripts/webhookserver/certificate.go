package webhookserver

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// certificate is the serving certificate in a directory, as a kubelet keeps a mounted
// Secret there: both files change at once, but not between two reads.
type certificate struct {
	dir     string
	log     *slog.Logger
	current atomic.Pointer[tls.Certificate]
	// read is what current was made of; it belongs to one goroutine at a time.
	read [2]string
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if now := c.current.Load(); now != nil {
		return now, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// load reads the files. While they are not a pair, the last one that was stays.
func (c *certificate) load() error {
	var read [2]string
	for i, name := range []string{"tls.crt", "tls.key"} {
		text, err := os.ReadFile(filepath.Join(c.dir, name))
		if err != nil {
			return err
		}
		read[i] = string(text)
	}
	if read == c.read {
		return nil
	}
	pair, err := tls.X509KeyPair([]byte(read[0]), []byte(read[1]))
	if err != nil {
		return err
	}
	c.read = read
	c.current.Store(&pair)
	c.log.Info("certificate read", "serial", pair.Leaf.SerialNumber.Text(16), "until", pair.Leaf.NotAfter)
	return nil
}

// wait waits for the first certificate; it returns false if the context was done first.
func (c *certificate) wait(ctx context.Context, every time.Duration) bool {
	return c.poll(ctx, every, func() bool { return c.current.Load() != nil })
}

// follow reads the files whenever they change.
func (c *certificate) follow(ctx context.Context, every time.Duration) {
	c.poll(ctx, every, func() bool { return false })
}

// poll loads again and again until there is enough; it returns false if the context was
// done first. An error is logged when it is another one.
func (c *certificate) poll(ctx context.Context, every time.Duration, enough func() bool) bool {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	said := ""
	for {
		switch err := c.load(); {
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			if errors.Is(err, fs.ErrNotExist) {
				c.log.Info("waiting for the certificate", "directory", c.dir)
			} else {
				c.log.Warn("certificate not read", "error", err)
			}
		}
		if enough() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}
