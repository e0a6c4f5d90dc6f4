package simulation

import (
	"strings"

	lua "github.com/yuin/gopher-lua"
)

// Lua's patterns, for string.match, gmatch and find: gopher-lua's own take time that grows
// exponentially for some that the scripts use. Not %b and %f, which they do not.

// matcher matches one pattern at one place.
type matcher struct {
	text, pattern string
	captures      [32]capture
	level         int
}

// capture is a part of the text; its length is open until its parenthesis is closed.
type capture struct{ from, length int }

const open = -1

// match matches the pattern from p at the text from s, and returns the end, or -1.
func (m *matcher) match(s, p int) int {
	for p < len(m.pattern) {
		switch c := m.pattern[p]; {
		case c == '(':
			return m.begin(s, p+1)
		case c == ')':
			return m.close(s, p+1)
		case c == '$' && p+1 == len(m.pattern):
			if s == len(m.text) {
				return s
			}
			return -1
		case c == '%' && p+1 < len(m.pattern) && '1' <= m.pattern[p+1] && m.pattern[p+1] <= '9':
			b := m.captures[m.pattern[p+1]-'1']
			if !strings.HasPrefix(m.text[s:], m.text[b.from:b.from+b.length]) {
				return -1
			}
			s, p = s+b.length, p+2
			continue
		}
		next := m.classEnd(p)
		if next == len(m.pattern) {
			if !m.single(s, p, next) {
				return -1
			}
			s, p = s+1, next
			continue
		}
		switch m.pattern[next] {
		case '*':
			return m.longest(s, p, next, 0)
		case '+':
			return m.longest(s, p, next, 1)
		case '-':
			for {
				if end := m.match(s, next+1); end >= 0 || !m.single(s, p, next) {
					return end
				}
				s++
			}
		case '?':
			if m.single(s, p, next) {
				if end := m.match(s+1, next+1); end >= 0 {
					return end
				}
			}
			p = next + 1
			continue
		}
		if !m.single(s, p, next) {
			return -1
		}
		s, p = s+1, next
	}
	return s
}

// begin matches what is behind the beginning of a capture.
func (m *matcher) begin(s, p int) int {
	m.captures[m.level] = capture{s, open}
	m.level++
	end := m.match(s, p)
	if end < 0 {
		m.level--
	}
	return end
}

// close matches what is behind the end of a capture.
func (m *matcher) close(s, p int) int {
	l := m.level - 1
	for m.captures[l].length != open {
		l--
	}
	m.captures[l].length = s - m.captures[l].from
	end := m.match(s, p)
	if end < 0 {
		m.captures[l].length = open
	}
	return end
}

// longest matches as many of a class as it can, and at least so many, and then the rest.
func (m *matcher) longest(s, p, next, least int) int {
	n := 0
	for m.single(s+n, p, next) {
		n++
	}
	for ; n >= least; n-- {
		if end := m.match(s+n, next+1); end >= 0 {
			return end
		}
	}
	return -1
}

// classEnd is where the class at p ends.
func (m *matcher) classEnd(p int) int {
	switch m.pattern[p] {
	case '%':
		return p + 2
	case '[':
		end := p + 1
		for first := true; first || m.pattern[end] != ']'; first = false {
			if m.pattern[end] == '%' {
				end++
			}
			end++
		}
		return end + 1
	}
	return p + 1
}

// single reports whether the character at s is of the class in the pattern from p to next.
func (m *matcher) single(s, p, next int) bool {
	if s >= len(m.text) {
		return false
	}
	c := m.text[s]
	switch m.pattern[p] {
	case '.':
		return true
	case '%':
		return ofClass(c, m.pattern[p+1])
	case '[':
		return inSet(c, m.pattern[p+1:next-1])
	}
	return m.pattern[p] == c
}

func inSet(c byte, set string) bool {
	wanted := true
	if strings.HasPrefix(set, "^") {
		wanted, set = false, set[1:]
	}
	for i := 0; i < len(set); i++ {
		switch {
		case set[i] == '%':
			i++
			if ofClass(c, set[i]) {
				return wanted
			}
		case i+2 < len(set) && set[i+1] == '-':
			if set[i] <= c && c <= set[i+2] {
				return wanted
			}
			i += 2
		case set[i] == c:
			return wanted
		}
	}
	return !wanted
}

// ofClass reports whether c is of a class like %d. A capital letter is its complement.
func ofClass(c, class byte) bool {
	digit := '0' <= c && c <= '9'
	letter := 'a' <= c|0x20 && c|0x20 <= 'z'
	var is bool
	switch class | 0x20 {
	case 'd':
		is = digit
	case 'a':
		is = letter
	case 'w':
		is = letter || digit
	case 's':
		is = c == ' ' || '\t' <= c && c <= '\r'
	case 'x':
		is = digit || letter && c|0x20 <= 'f'
	default:
		return c == class
	}
	return is != (class&0x20 == 0)
}

// findPattern returns the first match from init on, and its captures: with none, all of it.
func findPattern(text, pattern string, init int) (from, to int, captures []string, ok bool) {
	m := &matcher{text: text, pattern: strings.TrimPrefix(pattern, "^")}
	for s := init; s <= len(text); s++ {
		m.level = 0
		if end := m.match(s, 0); end >= 0 {
			for _, c := range m.captures[:m.level] {
				captures = append(captures, text[c.from:c.from+c.length])
			}
			return s, end, captures, true
		}
		if len(m.pattern) < len(pattern) {
			break // it began with ^
		}
	}
	return 0, 0, nil, false
}

func pushCaptures(l *lua.LState, all []string, whole string) int {
	if len(all) == 0 {
		all = []string{whole}
	}
	for _, text := range all {
		l.Push(lua.LString(text))
	}
	return len(all)
}

func initOf(l *lua.LState) int { return max(l.OptInt(3, 1)-1, 0) }

func luaMatch(l *lua.LState) int {
	text := l.CheckString(1)
	from, to, captures, ok := findPattern(text, l.CheckString(2), initOf(l))
	if !ok {
		l.Push(lua.LNil)
		return 1
	}
	return pushCaptures(l, captures, text[from:to])
}

func luaFind(l *lua.LState) int {
	text, pattern, init := l.CheckString(1), l.CheckString(2), initOf(l)
	from, to, captures, ok := 0, 0, []string(nil), false
	if l.ToBool(4) && init <= len(text) {
		from = init + strings.Index(text[init:], pattern)
		to, ok = from+len(pattern), from >= init
	} else if !l.ToBool(4) {
		from, to, captures, ok = findPattern(text, pattern, init)
	}
	if !ok {
		l.Push(lua.LNil)
		return 1
	}
	l.Push(lua.LNumber(from + 1))
	l.Push(lua.LNumber(to))
	if captures == nil {
		return 2
	}
	return 2 + pushCaptures(l, captures, "")
}

func luaGmatch(l *lua.LState) int {
	text, pattern, at := l.CheckString(1), l.CheckString(2), 0
	l.Push(l.NewFunction(func(l *lua.LState) int {
		from, to, captures, ok := findPattern(text, pattern, at)
		if !ok {
			l.Push(lua.LNil)
			return 1
		}
		if at = to; to == from {
			at++
		}
		return pushCaptures(l, captures, text[from:to])
	}))
	return 1
}
