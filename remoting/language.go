package remoting

// Numbers of the languages that a client can name.
const (
	LangJava  byte = 0
	LangCPP   byte = 1
	LangOther byte = 7
	LangGo    byte = 9
)

var languages = [...]string{
	"JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
}

// LanguageName returns the name that JSON headers carry, OTHER for an unknown number.
func LanguageName(n byte) string {
	if int(n) < len(languages) {
		return languages[n]
	}
	return languages[LangOther]
}

// languageOf returns the number of a name or of a decimal number, LangOther when it is unknown.
func languageOf(name []byte) byte {
	for i, l := range languages {
		if l == string(name) {
			return byte(i)
		}
	}
	var n int
	for _, c := range name {
		if c < '0' || c > '9' || n > 255 {
			return LangOther
		}
		n = 10*n + int(c-'0')
	}
	if len(name) == 0 || n >= len(languages) {
		return LangOther
	}
	return byte(n)
}
