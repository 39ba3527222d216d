// The log-in: a name and a password, or a token, become a cookie that no script can read.

import { setText } from "./dom.js";
import { post } from "./live.js";

const byId = (id) => document.getElementById(id);

async function logIn(event) {
  event.preventDefault();
  const [name, secret] = [byId("name").value.trim(), byId("secret").value];
  setText(byId("problem"), "");
  try {
    await post("../api/v1/login", name === "" ? { token: secret } : { name, password: secret });
  } catch (problem) {
    const isWrong = problem.status === 401;
    const text = isWrong ? "That is not right: nobody is known by this." : `Not logged in: ${problem.message}.`;
    setText(byId("problem"), text);
    byId("secret").select();
    return;
  }
  // Back to the view that was asked for, which the address has kept.
  location.replace(`../${location.hash}`);
}

byId("login").addEventListener("submit", logIn);
// Before this the browser itself would send the form, which it may not. Who types already is left alone.
byId("login").querySelector("button").disabled = false;
if (document.activeElement === document.body) byId("name").focus();
