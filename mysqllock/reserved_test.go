package mysqllock

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// reservedInMySQL are the words that MySQL 8 or 9 reserves and MariaDB does not: as a bare name
// each is a syntax error in MySQL. The servers of the tests are MariaDB, which takes them.
var reservedInMySQL = strings.Fields(`cube cume_dist dense_rank empty except first_value function grouping groups intersect
	json_table lag last_value lateral lead library manual nth_value ntile of parallel percent_rank qualify rank row_number system
	tablesample window`)

var (
	notCode = regexp.MustCompile(`--[^\n]*|'(?:[^'\\]|\\.|'')*'|/\*[^*]*\*/`)
	words   = regexp.MustCompile(`[A-Za-z_][A-Za-z_0-9]*`)
)

// reserved finds those words in a text of SQL, outside of comments and strings.
func reserved(text string) (found []string) {
	for _, word := range words.FindAllString(notCode.ReplaceAllString(text, " "), -1) {
		if word = strings.ToLower(word); slices.Contains(reservedInMySQL, word) {
			found = append(found, word)
		}
	}
	return found
}

// MySQL can make the tables and procedures, as far as its reserved words go.
func TestSchemaHasNoWordReservedInMySQL(t *testing.T) {
	t.Parallel()
	for i, step := range migrations {
		if found := reserved(step); found != nil {
			t.Errorf("version %d uses %v", i+1, found)
		}
	}
}

// The search finds a word of any case, and skips comments, strings and longer words.
func TestReservedWordsAreFound(t *testing.T) {
	t.Parallel()
	text := "-- a row of names\nSELECT 'the ''window'' of', v_rank, LAST_INSERT_ID() AS Rank FROM t /* lead */ -- lag\n WHERE manual = 1"
	if found := reserved(text); !slices.Equal(found, []string{"rank", "manual"}) {
		t.Errorf("found %v", found)
	}
}
