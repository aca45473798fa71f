//go:build !linux

package broker_test

import "errors"

func mountSmall(string, int64) error { return errors.ErrUnsupported }

func unmount(string) error { return errors.ErrUnsupported }
