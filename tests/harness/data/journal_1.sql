BEGIN TRANSACTION;
CREATE TABLE events (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1.79607864879558753968e+09,'plan','','{"command":"run","files":{"prompts/step.md":{"$text":"c27c996b49420448acc4cd40e4ed472252635e2c35c55e4834f7fb16cc00cf96"}}}');
INSERT INTO "events" VALUES(2,1.79607864879584026339e+09,'step','run/agent/t/0','{"attempt":0,"turn":{"observation":{"$text":"c27c996b49420448acc4cd40e4ed472252635e2c35c55e4834f7fb16cc00cf96"},"action":"go","situation":"s","retrieved":["i"],"calls":[{"prompt":{"$text":"c27c996b49420448acc4cd40e4ed472252635e2c35c55e4834f7fb16cc00cf96"},"output":"go","digest":"m:1","usage":{"prompt_tokens":3,"dollars":0.5,"seconds":0.25}}],"reward":1.0}}');
INSERT INTO "events" VALUES(3,1.79607864879591274265e+09,'step','run/agent/t/0','{"attempt":0,"turn":{"observation":{"$text":"c27c996b49420448acc4cd40e4ed472252635e2c35c55e4834f7fb16cc00cf96"},"action":"go","situation":"s","retrieved":["i"],"calls":[{"prompt":{"$text":"c27c996b49420448acc4cd40e4ed472252635e2c35c55e4834f7fb16cc00cf96"},"output":"go","digest":"m:1","usage":{"prompt_tokens":3,"dollars":0.5,"seconds":0.25}}],"reward":1.0}}');
INSERT INTO "events" VALUES(4,1.79607864879597711564e+09,'episode','run/agent/t/0','{"id":"run/agent/t/0","task":"t","split":"valid","goal":"g","episode":0,"seed":1,"harness":"h","model":"m","unfinished":[],"final":"end","score":1.0,"status":"done","reason":"","arm":"agent","parent":null,"started":5.0,"seconds":2.5,"attempt":0}');
INSERT INTO "events" VALUES(5,1.79607864879604172706e+09,'outcome','','{"mean":0.5}');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('format','1');
CREATE TABLE texts (hash TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO "texts" VALUES('c27c996b49420448acc4cd40e4ed472252635e2c35c55e4834f7fb16cc00cf96',X'785E4B54C8C9CF4B572849AD28D151F8307F59B742625E8AC2DB050D0A89A33223280C0069DED729');
CREATE INDEX events_by_kind ON events (kind, key);
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER events_last BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER events_once BEFORE INSERT ON events WHEN EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
  BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER texts_stay BEFORE UPDATE ON texts BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER texts_last BEFORE DELETE ON texts BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
COMMIT;
