//go:build !linux

package confined

import "errors"

func confine(string, string, []string) error {
	return errors.New("only Linux can confine a program")
}
