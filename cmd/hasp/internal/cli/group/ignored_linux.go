package group

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
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

const self = "/proc/self/exe"

// ignoredNow is the set of signals that this process ignores: bit n-1 is signal n.
func ignoredNow() (set uint64) {
	for _, sig := range handedOn {
		var now sigaction
		_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&now)), sigsetSize(), 0, 0)
		if errno == 0 && now[handlerAt()] == sigIgn {
			set |= 1 << (sig - 1)
		}
	}
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
	address, err := variable(program, "runtime.fwdSig", 8*signals)
	if err != nil {
		return nil, err
	}
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	// The program may lie elsewhere than its table says: its first instruction tells by how much.
	moved := uint64(auxiliary(atEntry)) - program.Entry
	text := make([]byte, 8*signals)
	if _, err := memory.ReadAt(text, int64(address+moved)); err != nil {
		return nil, err
	}
	handlers := make([]uint64, signals)
	for i := range handlers {
		handlers[i] = binary.LittleEndian.Uint64(text[8*i:])
	}
	return handlers, nil
}

// signals is the number of elements of fwdSig: one for each signal, and for 0.
const signals = 65

// variable looks up the address of a variable of the given size. The program's table has some 35,000
// entries, which the function of package elf would turn into as many values. The variables are behind the
// functions, and few have a size: this reads a fifth of the table and one or two of the names.
func variable(program *elf.File, name string, size uint64) (address uint64, err error) {
	table, names := program.Section(".symtab"), program.Section(".strtab")
	if table == nil || names == nil {
		return 0, elf.ErrNoSymbols
	}
	chunk, text := make([]byte, 2048*elf.Sym64Size), make([]byte, len(name)+1)
	for end := int64(table.FileSize); end > 0; end -= int64(len(chunk)) {
		chunk = chunk[:min(int64(len(chunk)), end)]
		if _, err := table.ReadAt(chunk, end-int64(len(chunk))); err != nil {
			return 0, err
		}
		for entry := chunk; len(entry) >= elf.Sym64Size; entry = entry[elf.Sym64Size:] {
			if elf.ST_TYPE(entry[4]) != elf.STT_OBJECT || binary.LittleEndian.Uint64(entry[16:]) != size {
				continue
			}
			if _, err := names.ReadAt(text, int64(binary.LittleEndian.Uint32(entry))); err == nil && string(text) == name+"\x00" {
				return binary.LittleEndian.Uint64(entry[8:]), nil
			}
		}
	}
	return 0, fmt.Errorf("%w: %s", elf.ErrNoSymbols, name)
}
