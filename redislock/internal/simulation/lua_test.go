package simulation

import (
	"crypto/sha1"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// message was published by a script.
type message struct{ channel, text string }

// execution is one run of a script at a server.
type execution struct {
	server  *server
	dbIndex int
	now     int64 // the server's time, in microseconds: a script sees one moment
	noInfo  bool  // the user has no right to INFO

	wrote     bool
	published []message
}

// interpreter runs scripts, one at a time.
type interpreter struct {
	state *lua.LState
	env   *execution
}

func newInterpreter() *interpreter {
	l := lua.NewState(lua.Options{RegistrySize: 1024, RegistryMaxSize: 1 << 16, SkipOpenLibs: true})
	for _, open := range []lua.LGFunction{lua.OpenBase, lua.OpenTable, lua.OpenString, lua.OpenMath} {
		l.Push(l.NewFunction(open))
		l.Call(0, 0)
	}
	text := l.GetGlobal("string").(*lua.LTable)
	text.RawSetString("match", l.NewFunction(luaMatch))
	text.RawSetString("find", l.NewFunction(luaFind))
	text.RawSetString("gmatch", l.NewFunction(luaGmatch))
	l.SetGlobal("tonumber", l.NewFunction(luaToNumber))
	in := &interpreter{state: l}
	redis := l.NewTable()
	redis.RawSetString("call", l.NewFunction(func(l *lua.LState) int { return in.call(l, true) }))
	redis.RawSetString("pcall", l.NewFunction(func(l *lua.LState) int { return in.call(l, false) }))
	redis.RawSetString("error_reply", l.NewFunction(func(l *lua.LState) int { return single(l, "err") }))
	redis.RawSetString("status_reply", l.NewFunction(func(l *lua.LState) int { return single(l, "ok") }))
	redis.RawSetString("sha1hex", l.NewFunction(func(l *lua.LState) int {
		l.Push(lua.LString(fmt.Sprintf("%x", sha1.Sum([]byte(l.CheckString(1))))))
		return 1
	}))
	l.SetGlobal("redis", redis)
	return in
}

// luaToNumber knows exponents, which gopher-lua's does not.
func luaToNumber(l *lua.LState) int {
	switch v := l.CheckAny(1).(type) {
	case lua.LNumber:
		l.Push(v)
		return 1
	case lua.LString:
		text := strings.TrimSpace(string(v))
		if f, err := strconv.ParseFloat(text, 64); err == nil && !strings.Contains(text, "_") {
			l.Push(lua.LNumber(f))
			return 1
		}
		if n, err := strconv.ParseInt(text, 0, 64); err == nil && strings.HasPrefix(strings.ToLower(text), "0x") {
			l.Push(lua.LNumber(n))
			return 1
		}
	}
	l.Push(lua.LNil)
	return 1
}

func single(l *lua.LState, field string) int {
	t := l.NewTable()
	t.RawSetString(field, l.CheckAny(1))
	l.Push(t)
	return 1
}

// compiled has each script once.
var compiled sync.Map // of text: *lua.FunctionProto

func compile(text string) (*lua.FunctionProto, error) {
	if p, ok := compiled.Load(text); ok {
		return p.(*lua.FunctionProto), nil
	}
	chunk, err := parse.Parse(strings.NewReader(text), "script")
	if err != nil {
		return nil, err
	}
	p, err := lua.Compile(chunk, "script")
	if err == nil {
		compiled.Store(text, p)
	}
	return p, err
}

// run runs a script and returns its answer as redisconn has it.
func (in *interpreter) run(e *execution, text string, keys, args []string) redisconn.Reply {
	proto, err := compile(text)
	if err != nil {
		panic(fmt.Sprintf("a script does not compile: %v\n%s", err, text)) // one of the planted faults
	}
	l := in.state
	in.env = e
	l.SetGlobal("KEYS", list(l, keys))
	l.SetGlobal("ARGV", list(l, args))
	l.Push(l.NewFunctionFromProto(proto))
	if err := l.PCall(0, 1, nil); err != nil {
		l.SetTop(0)
		api, _ := err.(*lua.ApiError)
		if t, ok := api.Object.(*lua.LTable); ok {
			return redisconn.Reply{Err: redisconn.ServerError(lua.LVAsString(t.RawGetString("err")))}
		}
		return redisconn.Reply{Err: redisconn.ServerError("ERR Error running script: " + err.Error())}
	}
	v := l.Get(-1)
	l.SetTop(0)
	answer := fromLua(v)
	if f, failed := answer.(failure); failed {
		return redisconn.Reply{Err: redisconn.ServerError(f)}
	}
	return redisconn.Reply{Value: answer}
}

func list(l *lua.LState, texts []string) *lua.LTable {
	t := l.CreateTable(len(texts), 0)
	for _, text := range texts {
		t.Append(lua.LString(text))
	}
	return t
}

// call is redis.call, and redis.pcall if it does not raise.
func (in *interpreter) call(l *lua.LState, raise bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		switch v := l.Get(i + 1).(type) {
		case lua.LString:
			args[i] = string(v)
		case lua.LNumber:
			args[i] = number(float64(v))
		default:
			return in.answer(l, failure("ERR Lua redis lib command arguments must be strings or integers"), raise)
		}
	}
	if len(args) == 0 {
		return in.answer(l, failure("ERR Please specify at least one argument for this redis.call() call"), raise)
	}
	return in.answer(l, in.env.do(args), raise)
}

// number writes an argument as Redis does.
func number(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', 17, 64)
}

func (in *interpreter) answer(l *lua.LState, reply any, raise bool) int {
	v := toLua(l, reply)
	if _, failed := reply.(failure); failed && raise {
		l.Error(v, 0)
	}
	l.Push(v)
	return 1
}

// toLua converts an answer as Redis does: nil becomes false.
func toLua(l *lua.LState, reply any) lua.LValue {
	switch v := reply.(type) {
	case nil:
		return lua.LFalse
	case int64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case status:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(v))
		return t
	case failure:
		t := l.NewTable()
		t.RawSetString("err", lua.LString(v))
		return t
	case []any:
		t := l.CreateTable(len(v), 0)
		for i, x := range v {
			t.RawSetInt(i+1, toLua(l, x))
		}
		return t
	}
	panic(fmt.Sprintf("no answer of Redis: %T", reply))
}

// fromLua converts a script's answer as Redis does: numbers lose their fractions, false and nil are
// nil, true is 1, and an array ends at its first nil.
func fromLua(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LString:
		return string(v)
	case lua.LNumber:
		return int64(v)
	case lua.LBool:
		if v {
			return int64(1)
		}
		return nil
	case *lua.LTable:
		if err := v.RawGetString("err"); err != lua.LNil {
			return failure(lua.LVAsString(err))
		}
		if ok := v.RawGetString("ok"); ok != lua.LNil {
			return lua.LVAsString(ok)
		}
		all := []any{}
		for i := 1; ; i++ {
			x := v.RawGetInt(i)
			if x == lua.LNil {
				return all
			}
			all = append(all, fromLua(x))
		}
	}
	return nil
}
