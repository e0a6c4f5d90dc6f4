package main

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// release makes the commit of a release, beside the current branch, and its tags: one for each
// module, as Go wants them. In that commit our modules require each other at the version; on the
// branch they go on to require what lies beside them, by replace directives, with which go install
// would refuse the command.
//
// The commit's go.sum files have no sums of our own modules. Nothing reads them: a program has a
// go.sum itself, and go install needs none.
func release(version string) (err error) {
	if !regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$`).MatchString(version) {
		return fmt.Errorf("%q is not a version such as v1.2.3", version)
	}
	changed, err1 := run(".", "git", "status", "--porcelain")
	tagged, err2 := run(".", "git", "tag", "--list", version, "*/"+version)
	branch, err3 := run(".", "git", "symbolic-ref", "--short", "HEAD")
	switch err := errors.Join(err1, err2, err3); {
	case err != nil:
		return err
	case changed != "":
		return fmt.Errorf("commit or remove first what has changed:\n%s", changed)
	case tagged != "":
		return fmt.Errorf("there are tags of %s:\n%s", version, tagged)
	}
	if _, err := run(".", "git", "checkout", "-q", "--detach"); err != nil {
		return err
	}
	defer func() {
		_, back := run(".", "git", "checkout", "-q", "-f", strings.TrimSpace(branch))
		err = errors.Join(err, back)
	}()
	var tags []string
	for _, dir := range published {
		mod, err := requires(dir)
		if err != nil {
			return err
		}
		for _, d := range mod.ours() {
			if _, err := run(dir, "go", "mod", "edit", "-require="+importPath(d)+"@"+version, "-dropreplace="+importPath(d)); err != nil {
				return err
			}
		}
		tags = append(tags, path.Join(dir, version))
	}
	if _, err := run(".", "git", "commit", "-q", "--allow-empty", "-a", "-m", "release "+version); err != nil {
		return err
	}
	for _, tag := range tags {
		if _, err := run(".", "git", "tag", "-a", "-m", tag, tag); err != nil {
			return err
		}
	}
	fmt.Println("git push origin", strings.Join(tags, " "))
	return nil
}
