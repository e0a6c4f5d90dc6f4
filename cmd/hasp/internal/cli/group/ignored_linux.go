package group

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// KeepIgnored keeps the signals ignored that the parent process ignored, for hasp and for the
// command, as without hasp. Go keeps HUP and INT ignored and does not touch those of job control.
// It takes over the others before any code of hasp runs, and does not report their former state:
// where that cannot be found out, the command gets them with their default effect.
func KeepIgnored() {
	ignored := ignoredNow()
	if handlers, err := handlersBefore(); err == nil {
		for n, handler := range handlers {
			if handler == sigIgn {
				ignored |= 1 << n >> 1
			}
		}
	}
	for _, sig := range handedOn {
		if ignored&(1<<(sig-1)) != 0 {
			signal.Ignore(sig)
		}
	}
}

// handedOn lacks CHLD, since the kernel would then reap our children itself, and the signals that
// report a program's own faults.
var handedOn = []syscall.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE,
	syscall.SIGALRM, syscall.SIGTERM, syscall.SIGTSTP, syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGVTALRM,
	syscall.SIGWINCH, syscall.SIGIO, syscall.SIGPWR,
}

const (
	sigIgn = 1 // SIG_IGN, in the place of a handler
	self   = "/proc/self/exe"
)

// ignoredNow is the set of signals that this process ignores: bit n-1 is signal n.
func ignoredNow() uint64 {
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(status), "\nSigIgn:\t")
	line, _, _ := strings.Cut(rest, "\n")
	set, _ := strconv.ParseUint(line, 16, 64) // 0 where there is no /proc
	return set
}

// handlersBefore are the handlers that Go's runtime replaced by its own: its variable fwdSig, by
// number. No Go function gives access to it, so it is looked up in the program's symbol table and
// read from this process's memory: as a file, so that a mistake is an error and not a crash. It is
// not found in a program without symbols (strip, -ldflags=-s), or if Go renames it;
// TestIgnoredSignalsStayIgnored checks that. The alternative, a constructor in C, needs cgo: a C
// compiler to build hasp and the C library to run it.
func handlersBefore() ([]uint64, error) {
	program, err := elf.Open(self)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	if program.Class != elf.ELFCLASS64 || program.ByteOrder != binary.ByteOrder(binary.LittleEndian) {
		return nil, errors.ErrUnsupported
	}
	// The program's offset in memory: the address of a function here, compared with the table.
	here := runtime.FuncForPC(reflect.ValueOf(KeepIgnored).Pointer())
	found, err := symbols(program, "runtime.fwdSig", here.Name())
	if err != nil {
		return nil, err
	}
	variable, us := found[0], found[1]
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	text := make([]byte, variable.Size)
	if _, err := memory.ReadAt(text, int64(variable.Value+uint64(here.Entry())-us.Value)); err != nil {
		return nil, err
	}
	handlers := make([]uint64, len(text)/8)
	for i := range handlers {
		handlers[i] = binary.LittleEndian.Uint64(text[8*i:])
	}
	return handlers, nil
}

// symbols looks names up in a table of some 50,000, which the function of package elf would turn
// into as many values: this takes a millisecond.
func symbols(program *elf.File, names ...string) ([]elf.Sym64, error) {
	entries, done, err := mapped(program, ".symtab")
	if err != nil {
		return nil, err
	}
	defer done()
	text, done, err := mapped(program, ".strtab")
	if err != nil {
		return nil, err
	}
	defer done()
	found := make([]elf.Sym64, len(names))
	for i, name := range names {
		at := bytes.Index(text, []byte("\x00"+name+"\x00")) + 1
		for entry := entries; at > 0 && len(entry) >= elf.Sym64Size && found[i].Size == 0; entry = entry[elf.Sym64Size:] {
			if binary.LittleEndian.Uint32(entry) == uint32(at) {
				found[i].Value = binary.LittleEndian.Uint64(entry[8:])
				found[i].Size = binary.LittleEndian.Uint64(entry[16:])
			}
		}
		if found[i].Size == 0 {
			return nil, fmt.Errorf("%w: %s", elf.ErrNoSymbols, name)
		}
	}
	return found, nil
}

// mapped is a section, not copied.
func mapped(program *elf.File, name string) (section []byte, done func(), err error) {
	s := program.Section(name)
	if s == nil {
		return nil, nil, elf.ErrNoSymbols
	}
	file, err := os.Open(self)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	begin := s.Offset % uint64(os.Getpagesize())
	memory, err := syscall.Mmap(int(file.Fd()), int64(s.Offset-begin), int(begin+s.FileSize), syscall.PROT_READ, syscall.MAP_PRIVATE)
	if err != nil {
		return nil, nil, err
	}
	return memory[begin:], func() { _ = syscall.Munmap(memory) }, nil
}
