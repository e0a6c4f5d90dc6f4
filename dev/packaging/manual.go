package main

import (
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// manual returns a page for the program and for each of its verbs, in the language of man(7). The
// help that the program prints is the only source. cobra's own generator takes the texts for
// Markdown, and breaks their columns.
func (r *release) manual(program, short string) ([]file, error) {
	var pages []file
	var write func(words []string, short string) error
	write = func(words []string, short string) error {
		text, err := r.run(program, append(words[1:len(words):len(words)], "--help")...)
		if err != nil {
			return err
		}
		h := parseHelp(text)
		name := strings.Join(words, "-")
		pages = append(pages, file{"usr/share/man/man1/" + name + ".1", "", []byte(h.page(name, short, words, r.version)), 0o644})
		for _, sub := range slices.Concat(h.verbs, h.topics) {
			if sub[0] == "help" {
				continue
			}
			if err := write(append(words[:len(words):len(words)], sub[0]), sub[1]); err != nil {
				return err
			}
		}
		return nil
	}
	return pages, write([]string{filepath.Base(program)}, short)
}

// help is a help text in its parts.
type help struct {
	description, usage, examples []string
	verbs, topics, flags         [][2]string // word or flag, and what is said of it
}

// Behind the description come these headings.
var parts = []string{"Usage:", "Examples:", "Available Commands:", "Help topics:", "Flags:", "Global Flags:", "More options:"}

func parseHelp(text string) (h help) {
	part := ""
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		for _, heading := range parts {
			if line == heading {
				part = line
			}
		}
		words := columns.FindStringSubmatch(line)
		switch {
		case line == part && part != "", part != "" && line == "", strings.HasPrefix(line, `Use "`):
		case part == "":
			h.description = append(h.description, line)
		case part == "Usage:":
			h.usage = append(h.usage, strings.TrimSpace(line))
		case part == "Examples:":
			h.examples = append(h.examples, strings.TrimPrefix(line, "  "))
		case words == nil:
		case part == "Available Commands:":
			h.verbs = append(h.verbs, [2]string{words[2], words[3]})
		case part == "Help topics:":
			h.topics = append(h.topics, [2]string{words[2], words[3]})
		default:
			h.flags = append(h.flags, [2]string{words[2], words[3]})
		}
	}
	return h
}

// page has no date: the same source makes the same page.
func (h help) page(name, short string, words []string, version string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"hasp manual\"\n.nh\n.ad l\n", strings.ToUpper(name), "hasp "+version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", roff(name), roff(short))
	for _, line := range h.usage {
		fmt.Fprintf(&b, "%s\n.br\n", roff(line))
	}
	b.WriteString(".SH DESCRIPTION\n")
	manText(&b, h.description)
	if len(h.examples) > 0 {
		b.WriteString(".SH EXAMPLES\n.nf\n")
		for _, line := range h.examples {
			b.WriteString(roff(line) + "\n")
		}
		b.WriteString(".fi\n")
	}
	if len(h.flags) > 0 {
		b.WriteString(".SH OPTIONS\n")
	}
	for _, f := range h.flags {
		flag, value, _ := strings.Cut(f[0], " ")
		if strings.HasSuffix(flag, ",") { // -w, --wait duration
			long, rest, _ := strings.Cut(value, " ")
			flag, value = flag+" "+long, rest
		}
		if value != "" {
			value = " " + value
		}
		fmt.Fprintf(&b, ".TP 4n\n\\fB%s\\fR%s\n%s\n", roff(flag), roff(value), roff(f[1]))
	}
	var also []string
	if len(words) > 1 {
		also = append(also, strings.Join(words[:len(words)-1], "-"))
	}
	for _, sub := range slices.Concat(h.verbs, h.topics) {
		if sub[0] != "help" {
			also = append(also, name+"-"+sub[0])
		}
	}
	for i, page := range also {
		if i == 0 {
			b.WriteString(".SH SEE ALSO\n")
		}
		comma := ","
		if i == len(also)-1 {
			comma = ""
		}
		fmt.Fprintf(&b, ".BR %s (1)%s\n", roff(page), comma)
	}
	if strings.Contains(b.String(), "docs/") {
		b.WriteString(".SH FILES\nThe folder docs is /usr/share/doc/hasp/docs.\n")
	}
	return b.String()
}

var (
	heading = regexp.MustCompile(`^[A-Z][A-Z -]+$`)
	columns = regexp.MustCompile(`^( *)(\S(?:.*?\S)?) {2,}(\S.*)$`)
)

// manText writes a description. A line of capitals is a heading; a line that has two columns, or
// whose text follows far to the right, begins an item; other lines that are indented more than a
// paragraph are shown as they are; and all else is paragraphs.
func manText(w io.Writer, lines []string) {
	at := func(i int) int { // the indent; of a blank line none
		if i >= len(lines) || lines[i] == "" {
			return -1
		}
		return len(lines[i]) - len(strings.TrimLeft(lines[i], " "))
	}
	section, before := false, ""
	for i := 0; i < len(lines); {
		line, kind := lines[i], ""
		indent, paragraph := at(i), 0
		if section {
			paragraph = 2
		}
		m := columns.FindStringSubmatch(line)
		switch {
		case line == "":
			i++
		case heading.MatchString(line):
			section, kind = true, "heading"
			fmt.Fprintln(w, ".SH "+roff(line))
			i++
		case m != nil, at(i+1) > indent+8:
			if m == nil {
				m = []string{"", "", strings.TrimSpace(line), ""}
			}
			kind = "item"
			fmt.Fprintf(w, ".TP 4n\n.B %s\n", roff(m[2]))
			if m[3] != "" {
				fmt.Fprintln(w, roff(m[3]))
			}
			for i++; at(i) > indent+2 && !columns.MatchString(lines[i]); i++ {
				fmt.Fprintln(w, roff(strings.TrimSpace(lines[i])))
			}
		case indent > paragraph:
			fmt.Fprintln(w, ".RS 4n\n.nf")
			for ; at(i) >= indent; i++ {
				fmt.Fprintln(w, roff(lines[i][indent:]))
			}
			fmt.Fprintln(w, ".fi\n.RE")
		default:
			if kind = "text"; before != kind && before != "heading" {
				fmt.Fprintln(w, ".PP")
			}
			fmt.Fprintln(w, roff(strings.TrimSpace(line)))
			i++
		}
		before = kind
	}
}

var escapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, "|", `\(ba`)

// roff escapes a line: its characters stay what they are, also copied from the page, and none of its
// words is a request.
func roff(text string) string {
	text = escapes.Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}
