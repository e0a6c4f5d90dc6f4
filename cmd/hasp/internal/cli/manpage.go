package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// writeManual writes a page for each verb. The help is the source. Our texts are plain text with aligned
// columns, and cobra's generator takes them for Markdown: it breaks the columns, and its parser
// would take a millisecond of every start of hasp.
func writeManual(root *cobra.Command, dir string) error {
	var write func(c *cobra.Command) error
	write = func(c *cobra.Command) error {
		if err := os.WriteFile(filepath.Join(dir, pageName(c)+".1"), []byte(manPage(c)), 0o644); err != nil {
			return err
		}
		for _, sub := range c.Commands() {
			if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
				continue
			}
			if err := write(sub); err != nil {
				return err
			}
		}
		return nil
	}
	return write(root)
}

// checkDir refuses what is no directory: one that is made by a mistyped path would be found by no man(1).
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s: %w", dir, syscall.ENOTDIR)
	}
	return err
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage is a verb's page in the language of man(7). It has no date: the same source makes the same page.
func manPage(c *cobra.Command) string {
	c.InitDefaultHelpFlag()
	var b strings.Builder
	title := strings.ToUpper(pageName(c))
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"hasp manual\"\n.nh\n.ad l\n", title, "hasp "+thisVersion().Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(c)), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n%s\n", roff(c.UseLine()))
	b.WriteString(".SH DESCRIPTION\n")
	long := c.Long
	if long == "" {
		long = c.Short + "."
	}
	manText(&b, long)
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n.nf\n")
		for line := range strings.Lines(c.Example) {
			b.WriteString(roff(strings.TrimPrefix(strings.TrimRight(line, "\n"), "  ")) + "\n")
		}
		b.WriteString(".fi\n")
	}
	manFlags(&b, c)
	manSeeAlso(&b, c)
	return b.String()
}

var (
	heading = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z][A-Z -]+$`) })
	item    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^( *)(\S(?:.*?\S)?) {2,}(\S.*)$`) })
)

// manText writes a help text. A line of capitals is a heading; a line that has two columns, or whose text
// follows far to the right, begins an item; other lines that are indented more than a paragraph are shown as they are;
// and all else is paragraphs.
func manText(w io.Writer, text string) {
	lines := strings.Split(text, "\n")
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
		m := item().FindStringSubmatch(line)
		switch {
		case line == "":
			i++
		case heading().MatchString(line):
			section = true
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
			for i++; at(i) > indent+2 && item().FindStringSubmatch(lines[i]) == nil; i++ {
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
		if before = kind; heading().MatchString(line) {
			before = "heading"
		}
	}
}

// manFlags lists the flags.
func manFlags(w io.Writer, c *cobra.Command) {
	if !c.Flags().HasAvailableFlags() {
		return
	}
	fmt.Fprintln(w, ".SH OPTIONS")
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if value != "" {
			value = " " + value
		}
		fmt.Fprintf(w, ".TP 4n\n\\fB%s\\fR%s\n%s\n", roff(name), roff(value), roff(usage))
	})
}

func manSeeAlso(w io.Writer, c *cobra.Command) {
	var pages []string
	if c.HasParent() {
		pages = append(pages, pageName(c.Parent()))
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			pages = append(pages, pageName(sub))
		}
	}
	if len(pages) == 0 {
		return
	}
	fmt.Fprintln(w, ".SH SEE ALSO")
	for i, page := range pages {
		comma := ","
		if i == len(pages)-1 {
			comma = ""
		}
		fmt.Fprintf(w, ".BR %s (1)%s\n", roff(page), comma)
	}
}

var escapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, "|", `\(ba`)

// roff escapes a line: its characters stay what they are, also copied from the page, and none of its words is a request.
func roff(text string) string {
	text = escapes.Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}
