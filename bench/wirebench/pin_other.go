//go:build !linux

package main

import "errors"

func pin(int) error { return errors.New("only Linux can keep a process on a core") }
